package judge_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"sbench/internal/aggregate"
	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/judge"
	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/regress"
	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/store"
)

// world is a database with a night, and an admission that stores what it is asked
// for.
type world struct {
	t       *testing.T
	store   *store.Store
	now     time.Time
	random  *rand.Rand
	hashes  []string
	refuse  error
	asked   [][]store.Again
	driver  string                          // of tonight's fingerprints
	metrics string                          // version of the definitions; "" is the present one
	slower  func(hash, node string) float64 // what a run takes more time by
	batches int
	spread  map[string]store.Spread // of the runs again
	one     bool                    // all of a night's runs are on one node
}

var tonight = time.Date(2026, 3, 1, 22, 0, 0, 0, time.UTC)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, now: tonight, random: rand.New(rand.NewPCG(7, 7)), driver: "550.54"}
	w.store = pgtest.New(t).WithClock(func() time.Time { return w.now })
	w.slower = func(string, string) float64 { return 1 }
	return w
}

// slowDown has every run of a setting take 8 % more time.
func (w *world) slowDown(slow string) {
	w.slower = func(hash, _ string) float64 {
		if hash == slow {
			return 1.08
		}
		return 1
	}
}

func (w *world) settings(n int, digest string) []store.NewSetting {
	var list []store.NewSetting
	w.hashes = nil
	for i := range n {
		s := setting.Default()
		s.Model.Name = fmt.Sprintf("m%02d", i)
		s.Hardware.GPU, s.Workload.Seed = "l4", 7
		s.Image.Digest = "sha256:" + strings.Repeat(digest, 64)
		s.Normalize()
		list = append(list, store.NewSetting{Hash: s.Hash(), SeriesHash: s.SeriesHash(), CanonicalSpec: s.Canonical(), Setting: s, Repeats: 5})
		w.hashes = append(w.hashes, s.Hash())
	}
	return list
}

// night stores a sweep that a schedule submitted, measures it and ends it.
func (w *world) night(settings []store.NewSetting) int64 {
	w.t.Helper()
	ctx := w.t.Context()
	id, _, err := w.store.CreateSweep(ctx, store.NewSweep{
		Name: "nightly", UserName: "ada", UID: 1000, Site: "lab", HardwareClass: "emulated", File: "sweep: v1\n", Settings: settings,
		IdempotencyKey: fmt.Sprint("night", w.now.Unix()),
	})
	w.must(err)
	list, err := w.store.Crons(ctx, "ada", "nightly")
	w.must(err)
	if len(list) == 0 {
		_, err := w.store.AddCron(ctx, store.NewCron{
			Name: "nightly", UserName: "ada", UID: 1000, Schedule: "0 22 * * *", TimeZone: "UTC", Overlap: "skip", CatchUp: "last", AtWindowEnd: "continue",
			Site: "lab", FileDigest: "x", SettingsDigest: "x", Options: json.RawMessage(`{}`),
		})
		w.must(err)
		list, err = w.store.Crons(ctx, "ada", "nightly")
		w.must(err)
	}
	_, err = w.store.FireCron(ctx, list[0], 0, "ada")
	w.must(err)
	waiting, err := w.store.WaitingFirings(ctx)
	w.must(err)
	w.must(w.store.MoveFiring(ctx, waiting[len(waiting)-1].ID, store.FiringSubmitted, "", &id, 1))
	w.measure(id)
	return id
}

// past inserts synthetic nights of every setting.
func (w *world) past(settings []store.NewSetting, nights int) {
	w.t.Helper()
	var list []store.NewSyntheticNight
	for _, s := range settings {
		for k := nights; k >= 1; k-- {
			n := store.NewSyntheticNight{
				SeriesHash: s.SeriesHash, SettingHash: s.Hash, Site: "lab", Label: "test", By: "ada", Night: tonight.Add(-time.Duration(k) * 24 * time.Hour),
			}
			shift := 0.004 * w.random.NormFloat64()
			for r := range 5 {
				x := math.Exp(shift + 0.01*w.random.NormFloat64())
				n.Throughput, n.Latency, n.Nodes = append(n.Throughput, 100/x), append(n.Latency, x/10), append(n.Nodes, fmt.Sprintf("n%d", r%4+1))
			}
			list = append(list, n)
		}
	}
	w.must(w.store.InsertSynthetic(w.t.Context(), list))
}

// measure gives every run of a sweep a result, and sums the settings up.
func (w *world) measure(sweep int64) {
	w.t.Helper()
	ctx := w.t.Context()
	w.batches++
	rows, err := w.store.RunsOfSweep(ctx, sweep, nil)
	w.must(err)
	token := "sb-" + strings.Repeat(string(rune('a'+w.batches)), 20)
	n := store.NewBatch{
		Token: token, Site: "lab", Cluster: "c1", UserName: "ada", Dir: "/spool/" + token, AttemptsDir: "/results/attempts",
		Digest: "sha256:" + strings.Repeat("0", 64), Shape: json.RawMessage("{}"), TimeLimit: time.Hour,
	}
	for _, r := range rows {
		n.Tasks = append(n.Tasks, store.NewTask{TimeLimit: time.Hour, GPUs: 1, Runs: []int64{r.ID}})
	}
	w.must(w.store.CreateBatch(ctx, n))
	if ok, err := w.store.TryBatch(ctx, token); err != nil || !ok {
		w.t.Fatal(ok, err)
	}
	if ok, err := w.store.HoldBatch(ctx, token, 1000*sweep, nil, "", nil); err != nil || !ok {
		w.t.Fatal(ok, err)
	}
	var all []store.Sealed
	for i, r := range rows {
		node := fmt.Sprintf("n%d", r.Repeat%4+1)
		if w.one {
			node = "n1"
		}
		x := w.slower(r.SettingHash, node) * math.Exp(0.01*w.random.NormFloat64())
		throughput, latency := 100/x, x/10
		a := result.Attempt{
			RunID: r.ID, Sweep: sweep, SettingHash: r.SettingHash, SeriesHash: r.SeriesHash, Repeat: r.Repeat, Token: token, TaskIndex: i,
			Site: "lab", Cluster: "c1", JobIDRaw: 1000*sweep + int64(i), Nodes: []string{node}, HardwareClass: "emulated",
			StartedAt: w.now, EndedAt: w.now.Add(time.Minute),
		}
		all = append(all, store.Sealed{
			Attempt:         store.NewAttempt{Attempt: a, Sealed: true, ExitClass: lifecycle.ExitMeasured, Valid: true, EnvVerified: true, Dir: fmt.Sprintf("/results/%d", r.ID)},
			FingerprintHash: "f" + w.driver,
			Result: &result.Result{
				Attempt: a, Valid: true, EnvVerified: true, MetricsVersion: cmp.Or(w.metrics, result.MetricsVersion), PlanHash: "p", Findings: []string{}, NullReasons: map[string]string{},
				Metrics:     result.Metrics{"output_tokens_per_s": &throughput, "ttft_p95": &latency},
				Fingerprint: json.RawMessage(fmt.Sprintf(`{"nodes":[{"kernel":"6.1","gpus":{"driver":%q}}]}`, w.driver)),
			},
		})
	}
	_, _, err = w.store.Ingest(ctx, all)
	w.must(err)
	w.now = w.now.Add(time.Hour)
	w.settle(sweep)
}

func (w *world) settle(sweep int64) {
	w.t.Helper()
	ctx := w.t.Context()
	keys, err := w.store.Unsettled(ctx, 1000)
	w.must(err)
	for _, key := range keys {
		if key.SweepID != sweep {
			continue
		}
		results, err := w.store.Results(ctx, key.SettingKey)
		w.must(err)
		in := aggregate.Input{NTotal: key.Repeats, Terminal: true}
		for i := range results {
			in.Runs = append(in.Runs, results[i].Run())
		}
		sum, err := aggregate.Compute(in)
		w.must(err)
		_, err = w.store.Settle(ctx, key.SettingKey, sum, results)
		w.must(err)
	}
}

func (w *world) service(die func(string)) *judge.Service {
	return judge.New(judge.Config{
		Store: w.store, Now: func() time.Time { return w.now }, Failpoint: die,
		Identify: func(context.Context, int) (auth.Identity, error) { return auth.Identity{UID: 1000, User: "ada"}, nil },
		Confirm:  w.confirm,
	})
}

func (w *world) confirm(ctx context.Context, who auth.Identity, of int64, list []store.Again, key string) (int64, error) {
	if w.refuse != nil {
		return 0, w.refuse
	}
	w.asked = append(w.asked, list)
	n := store.NewSweep{
		Name: "nightly-confirm", UserName: who.User, UID: who.UID, Site: "lab", HardwareClass: "emulated", File: "sweep: v1\n", IdempotencyKey: key,
	}
	for _, a := range list {
		found, err := w.store.AdmittedSettings(ctx, a.SweepID, []string{a.SettingHash})
		if err != nil || len(found) != 1 {
			return 0, fmt.Errorf("setting %s of sweep %d: %d found: %w", a.SettingHash, a.SweepID, len(found), err)
		}
		found[0].Repeats = a.Runs
		if a.Spread && w.spread[a.SettingHash].Reason == "" {
			found[0].Nodes = []string{"n1", "n2", "n3", "n4"}
		}
		n.Settings = append(n.Settings, found[0])
	}
	id, _, err := w.store.CreateConfirmation(ctx, n, of, w.spread)
	return id, err
}

// turn lets a daemon judge; killed says at which step it dies, "" for none.
func (w *world) turn(killed string) {
	w.t.Helper()
	type death struct{}
	func() {
		defer func() {
			if p := recover(); p != nil {
				if _, ok := p.(death); !ok {
					panic(p)
				}
			}
		}()
		w.must(w.service(func(at string) {
			if at == killed {
				panic(death{})
			}
		}).Turn(w.t.Context()))
	}()
}

func (w *world) report(sweep int64) (store.NightView, regress.Report) {
	w.t.Helper()
	n, err := w.store.NightOf(w.t.Context(), sweep)
	w.must(err)
	var r regress.Report
	w.must(json.Unmarshal(n.Report, &r))
	return n, r
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// A night in which one setting of twelve got slower although nothing pinned
// changed: it alone is run again, beside the reference setting, and published. The
// daemon dies at every step, and decides once all the same.
func TestNight_Unpinned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	settings := w.settings(12, "a")
	w.past(settings, 20)
	// A real night before tells what the environment was.
	w.now = tonight.Add(-30 * time.Hour)
	w.night(settings)
	w.turn("")
	w.must(w.store.SetReference(t.Context(), "lab", settings[3].Hash, "root"))
	w.now, w.driver = tonight, "560.1"
	slow := w.hashes[5]
	w.slowDown(slow)
	id := w.night(settings)
	w.turn("night-screened")
	n, r := w.report(id)
	if n.State != store.NightScreened || len(r.Candidates) != 1 || r.Candidates[0].Tonight != slow || r.Candidates[0].Synthetic != 20 {
		t.Fatalf("%s: %+v", n.State, r.Candidates)
	}
	if len(r.Environments) != 1 || len(r.Environments[0].Lines) != 1 || r.Environments[0].Lines[0] != "driver: 560.1 tonight, 550.54 before" {
		t.Errorf("environments %+v", r.Environments)
	}
	w.turn("night-admitted")
	w.turn("")
	if len(w.asked) != 1 || len(w.asked[0]) != 2 || w.asked[0][0].SettingHash != slow || w.asked[0][1].SettingHash != settings[3].Hash ||
		!w.asked[0][0].Spread || !w.asked[0][1].Spread {
		t.Fatalf("run again: %+v", w.asked)
	}
	n, _ = w.report(id)
	if n.State != store.NightConfirming || n.ConfirmedBy == nil {
		t.Fatalf("%+v", n)
	}
	w.turn("") // it has not ended
	w.measure(*n.ConfirmedBy)
	w.turn("night-concluded")
	w.turn("")
	w.turn("")
	n, r = w.report(id)
	if n.State != store.NightJudged || len(r.Alerts) != 1 || len(r.Confirmations) != 1 || !r.Confirmations[0].Published {
		t.Fatalf("%s: %+v %+v", n.State, r.Alerts, r.Confirmations)
	}
	if c := r.Confirmations[0]; c.Method != "predictive" || c.Cause != regress.CauseSoftware || len(c.Nodes) != 4 || math.Abs(*c.Ratio-1.08) > 0.03 || !strings.Contains(c.Reason, "on n1, n2, n3, n4") {
		t.Errorf("%+v", c)
	}
	list, err := w.store.Judgements(t.Context(), []int64{id})
	if err != nil || len(list) != 1 || !list[0].Published || list[0].SettingHash != slow {
		t.Errorf("judgements %+v, %v", list, err)
	}
	latest, err := w.store.LatestNights(t.Context(), tonight.Add(-90*24*time.Hour), "lab", 10)
	if err != nil || len(latest) != 1 || latest[0].SweepID != id || latest[0].Cron != "nightly" {
		t.Errorf("latest %+v, %v", latest, err)
	}
}

// A night with a new image that made one setting slower: the old and the new are
// run again side by side. What the candidates cannot be run again for is on record.
func TestNight_ChangedDigest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.settings(6, "a")
	w.past(old, 15)
	w.now = tonight.Add(-30 * time.Hour)
	w.night(old)
	w.now = tonight
	changed := w.settings(6, "b")
	slow := w.hashes[2]
	w.slowDown(slow)
	id := w.night(changed)
	w.turn("")
	if len(w.asked) != 1 || len(w.asked[0]) != 2 || w.asked[0][0].SettingHash != slow || w.asked[0][1].SettingHash != old[2].Hash || w.asked[0][0].Spread {
		t.Fatalf("run again: %+v", w.asked)
	}
	n, _ := w.report(id)
	w.measure(*n.ConfirmedBy)
	w.turn("")
	_, r := w.report(id)
	if len(r.Alerts) != 1 || r.Confirmations[0].Method != "interleaved" || !r.Confirmations[0].Published {
		t.Errorf("%+v %+v", r.Alerts, r.Confirmations)
	}
}

// What was computed by other definitions of the metrics is no history: neither of a
// night nor of the number of runs.
func TestHistory_OtherDefinitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	settings := w.settings(1, "a")
	w.metrics = "v0"
	w.night(settings)
	w.metrics = ""
	want := w.night(settings)
	nights, err := w.store.Nights(t.Context(), []string{settings[0].SeriesHash}, "lab", "emulated", tonight.Add(-time.Hour), w.now)
	w.must(err)
	if len(nights) != 1 || nights[0].SweepID != want {
		t.Errorf("nights %+v, want that of sweep %d", nights, want)
	}
	runs, err := w.store.History(t.Context(), settings[0].SeriesHash, "lab", "emulated", tonight.Add(-time.Hour), w.now, 100)
	w.must(err)
	if len(runs) != settings[0].Repeats || runs[0].SweepID != want {
		t.Errorf("%d runs of sweep %d", len(runs), want)
	}
}

// On a site with one node a slowdown is published, but nobody says that it is not
// the node. Where only one node is left of several, nothing is.
func TestNight_OneNode(t *testing.T) {
	t.Parallel()
	for name, reason := range map[string]string{"all there is": "n1 is the only usable node for it", "all that is left": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			settings := w.settings(6, "a")
			w.past(settings, 20)
			slow := w.hashes[5]
			w.slowDown(slow)
			w.spread = map[string]store.Spread{slow: {Nodes: []string{}, Reason: reason}}
			id := w.night(settings)
			w.turn("")
			w.one = true
			n, _ := w.report(id)
			w.measure(*n.ConfirmedBy)
			w.turn("")
			_, r := w.report(id)
			if len(r.Confirmations) != 1 {
				t.Fatalf("%+v", r)
			}
			c := r.Confirmations[0]
			if c.Published != (reason != "") || c.Cause != regress.CauseUnknown || c.NotSpread != reason || len(c.Nodes) != 1 || !strings.Contains(c.Reason, reason) {
				t.Errorf("%+v", c)
			}
		})
	}
}

// A node that does not take its run again does not keep the night open for ever.
func TestNight_NodeGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	settings := w.settings(6, "a")
	w.past(settings, 20)
	slow := w.hashes[5]
	w.slowDown(slow)
	id := w.night(settings)
	w.turn("")
	n, _ := w.report(id)
	w.now = w.now.Add(5 * time.Hour)
	w.turn("")
	if waiting, err := w.store.WaitingForNodes(t.Context(), *n.ConfirmedBy); err != nil || len(waiting) < 5 || waiting[1].Node != "n2" {
		t.Fatalf("after five hours: %+v, %v", waiting, err)
	}
	w.now = w.now.Add(90 * time.Minute)
	w.turn("")
	if waiting, err := w.store.WaitingForNodes(t.Context(), *n.ConfirmedBy); err != nil || len(waiting) != 0 {
		t.Errorf("after more than six: %+v, %v", waiting, err)
	}
	w.settle(*n.ConfirmedBy)
	w.turn("")
	n, r := w.report(id)
	if n.State != store.NightJudged || len(r.Alerts) != 0 || !strings.Contains(r.Confirmations[0].Reason, "0 fresh runs") {
		t.Errorf("%s: %+v", n.State, r.Confirmations)
	}
}

// What the owner may not run again is said, and is no regression.
func TestNight_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	settings := w.settings(3, "a")
	w.past(settings, 15)
	w.slower = func(string, string) float64 { return 1.1 }
	id := w.night(settings)
	w.refuse = &api.Problem{Code: api.CodeUnavailable, Message: "no answer"}
	if err := w.service(nil).Turn(t.Context()); err == nil {
		t.Error("an admission that does not answer is no error")
	}
	if n, _ := w.report(id); n.State != store.NightScreened {
		t.Errorf("given up at once: %s", n.State)
	}
	w.refuse = &api.Problem{Code: api.CodeRefused, Message: "no GPU-hours are left"}
	w.turn("")
	n, r := w.report(id)
	if n.State != store.NightJudged || !strings.Contains(n.Reason, "no GPU-hours are left") || len(r.Alerts) != 0 {
		t.Errorf("%+v", n)
	}
	list, err := w.store.Judgements(t.Context(), []int64{id})
	if err != nil || len(list) != 3 || list[0].Published || !strings.Contains(list[0].Reason, "no GPU-hours are left") {
		t.Errorf("judgements %+v, %v", list, err)
	}
}

// Everything gets slower at once: none is suspected by itself, three witnesses are
// run again, and there is one alert.
func TestNight_CommonShift(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	settings := w.settings(15, "a")
	w.past(settings, 20)
	w.slower = func(string, string) float64 { return 1.08 }
	id := w.night(settings)
	w.turn("")
	n, r := w.report(id)
	if len(r.Drifts) == 0 || len(r.Candidates) != 3 || !r.Candidates[0].Witness {
		t.Fatalf("%+v %+v", r.Drifts, r.Candidates)
	}
	w.measure(*n.ConfirmedBy)
	w.turn("")
	if _, r = w.report(id); len(r.Alerts) != 1 || len(r.Alerts[0].Series) != 3 {
		t.Errorf("%+v", r.Alerts)
	}
}

// One node is slow: no setting is blamed, the node is named, and kept out of
// comparisons from the second night on.
func TestNight_SlowNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	settings := w.settings(12, "a")
	w.past(settings, 20)
	w.slower = func(_, node string) float64 {
		if node == "n3" {
			return 1.08
		}
		return 1
	}
	for k, quarantine := range []bool{false, true} {
		w.now = tonight.Add(time.Duration(k) * 24 * time.Hour)
		id := w.night(settings)
		w.turn("")
		_, r := w.report(id)
		if len(r.Nodes) == 0 {
			t.Fatalf("night %d: no outlier", k)
		}
		for _, e := range r.Nodes {
			if e.Node != "n3" || e.Quarantine != quarantine || math.Abs(e.Effect-0.08) > 0.03 {
				t.Errorf("night %d: %+v", k, e)
			}
		}
	}
}
