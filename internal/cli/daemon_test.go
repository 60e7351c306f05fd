package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sbench/internal/aggregate"
	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/result"
	"sbench/internal/seal"
	"sbench/internal/site"
	"sbench/internal/store"
	"sbench/internal/web"
)

const demoSweep = `sweep: v1
name: demo
repeats: 2
setting:
  model:    {name: tiny, checkpoint: {path: model.gguf}, precision: fp16}
  image:    {kind: sif, path: engine.sif}
  engine:   {kind: llamacpp}
  hardware: {gpu: l4, gpus: 1, nodes: 1, placement: gpu}
  workload:
    kind: serving
    request: {endpoint: completions}
    arrival: {process: poisson, rate: 16/s}
    input_tokens:  {distribution: constant, value: 32}
    output_tokens: {distribution: constant, value: 16}
    duration: 100s
    seed: 42
matrix:
  workload.arrival.rate: [2/s, 4/s]
`

// lab is the handlers on a Unix socket and a database of their own: a daemon
// without Slurm.
type lab struct {
	t      *testing.T
	store  *store.Store
	socket string
	dir    string
	user   string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, store: pgtest.New(t), dir: t.TempDir(), user: me.Username}
	st, faults := site.Load(fmt.Appendf(nil, `site: v1
name: lab
cluster: c1
hardware_class: emulated
hardware: {l4: {gres: "gpu:l4", gpus_per_node: 4}}
paths: {spool: %[1]s/spool, results: %[1]s/results, models: %[1]s/models, images: %[1]s/images, cache: %[1]s/cache}
`, l.dir), "site.yaml")
	if st == nil {
		t.Fatal(faults.Text())
	}
	l.file("models/model.gguf", "")
	l.file("images/engine.sif", "")
	l.socket = filepath.Join(l.dir, "s")
	listener, err := net.Listen("unix", l.socket)
	if err != nil {
		t.Fatal(err)
	}
	handler, err := web.New(web.Config{
		Store: l.store, Auth: auth.NewPeers(auth.NewUsers(), auth.Roles{Self: os.Getuid()}), Sites: []*site.Site{st}, Log: slog.New(slog.DiscardHandler),
		Now: time.Now, Version: "test", UID: os.Getuid(), Poll: time.Millisecond,
		Mail: func() error { return errors.New("no mail program") },
		CheckSite: func(_ context.Context, st *site.Site, job bool) (api.SiteCheck, error) {
			probes := []api.SiteProbe{{Check: "controller", Verdict: api.VerdictPass, Detail: "cluster c1"}}
			if job {
				probes = append(probes, api.SiteProbe{Check: "clock", Subject: "l4", Verdict: api.VerdictFail, Detail: "9 s behind", Todo: "run chrony"})
			}
			return api.SiteCheck{Site: st.Name, Cluster: st.Cluster, OK: !job, Checks: probes}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ConnContext: auth.ConnContext, Handler: handler}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(listener) }()
	t.Cleanup(func() {
		srv.Close()
		<-done
	})
	return l
}

func (l *lab) file(name, text string) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// output is what a command printed and how it ended.
type output struct {
	status         int
	stdout, stderr string
}

func (l *lab) run(args ...string) output {
	l.t.Helper()
	return l.runContext(l.t.Context(), args...)
}

func (l *lab) runContext(ctx context.Context, args ...string) output {
	l.t.Helper()
	var stdout, stderr bytes.Buffer
	status := Main(ctx, append([]string{"--socket", l.socket}, args...), strings.NewReader(demoSweep), &stdout, &stderr)
	return output{status, stdout.String(), stderr.String()}
}

// ok expects status 0 and returns what was printed.
func (l *lab) ok(args ...string) string {
	l.t.Helper()
	o := l.run(args...)
	if o.status != exitOK {
		l.t.Fatalf("%v: status %d\n%s%s", args, o.status, o.stdout, o.stderr)
	}
	return o.stdout
}

// fails expects a status and a text on stderr.
func (l *lab) fails(status int, text string, args ...string) {
	l.t.Helper()
	o := l.run(args...)
	if o.status != status || !strings.Contains(o.stderr, text) {
		l.t.Errorf("%v: status %d, want %d and %q\n%s%s", args, o.status, status, text, o.stdout, o.stderr)
	}
}

func asJSON[T any](l *lab, args ...string) T {
	l.t.Helper()
	var v T
	text := l.ok(append(args, "--json")...)
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		l.t.Fatalf("%v: %v\n%s", args, err, text)
	}
	return v
}

// submitted puts runs into one batch, task by task, as the submission does.
func (l *lab) submitted(runs ...int64) {
	l.t.Helper()
	n := store.NewBatch{
		Token: token, Site: "lab", Cluster: "c1", UserName: l.user, Dir: filepath.Join(l.dir, "spool/batches", token),
		AttemptsDir: filepath.Join(l.dir, "results/attempts"), Digest: "sha256:" + strings.Repeat("0", 64), Shape: json.RawMessage("{}"),
		TimeLimit: time.Hour,
	}
	for _, r := range runs {
		n.Tasks = append(n.Tasks, store.NewTask{TimeLimit: time.Hour, GPUs: 1, Runs: []int64{r}})
	}
	if err := l.store.CreateBatch(l.t.Context(), n); err != nil {
		l.t.Fatal(err)
	}
	if ok, err := l.store.TryBatch(l.t.Context(), token); err != nil || !ok {
		l.t.Fatal(ok, err)
	}
	if ok, err := l.store.HoldBatch(l.t.Context(), token, 70, nil, "", nil); err != nil || !ok {
		l.t.Fatal(ok, err)
	}
}

const token = "sb-aaaaaaaaaaaaaaaaaaaa"

// seal ingests a sealed attempt of a run: a valid measurement, or one that ended
// in another class for a reason.
func (l *lab) seal(run int64, task int, class lifecycle.ExitClass, reason string, tokensPerS float64) {
	l.t.Helper()
	row, err := l.store.Run(l.t.Context(), run)
	if err != nil {
		l.t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a := result.Attempt{
		RunID: run, Sweep: row.SweepID, SettingHash: row.SettingHash, SeriesHash: row.SeriesHash, Repeat: row.Repeat, Token: token, TaskIndex: task,
		Site: "lab", Cluster: "c1", JobIDRaw: 71 + int64(task), Nodes: []string{"n1"}, HardwareClass: "emulated", StartedAt: at, EndedAt: at.Add(time.Minute),
	}
	dir := seal.Dir(filepath.Join(l.dir, "results/attempts"), run, a.JobIDRaw, 0)
	sealed := store.Sealed{Attempt: store.NewAttempt{Attempt: a, Sealed: true, ExitClass: class, Dir: dir}, FingerprintHash: "f"}
	if class == lifecycle.ExitMeasured {
		sealed.Attempt.Valid, sealed.Attempt.EnvVerified = true, true
		sealed.Result = &result.Result{
			Attempt: a, Valid: true, EnvVerified: true, MetricsVersion: "v1", PlanHash: "p", Metrics: result.Metrics{"output_tokens_per_s": &tokensPerS},
			Findings: []string{}, NullReasons: map[string]string{}, Fingerprint: json.RawMessage("{}"),
		}
	} else {
		sealed.Attempt.Reasons = []string{reason}
	}
	if _, _, err := l.store.Ingest(l.t.Context(), []store.Sealed{sealed}); err != nil {
		l.t.Fatal(err)
	}
	l.file(strings.TrimPrefix(dir, l.dir)+"/runner.log", "verified\nmeasured\n")
}

// settle sums up the settings of a sweep, as the collector does.
func (l *lab) settle(sweep int64) {
	l.t.Helper()
	views, err := l.store.SettingViews(l.t.Context(), sweep)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, v := range views {
		key := store.SettingKey{SweepID: sweep, SettingHash: v.SettingHash}
		used, err := l.store.Results(l.t.Context(), key)
		if err != nil {
			l.t.Fatal(err)
		}
		in := aggregate.Input{NTotal: v.Repeats, Terminal: true}
		for _, u := range used {
			in.Runs = append(in.Runs, aggregate.Run{
				AttemptID: u.AttemptID, Repeat: u.Repeat, Nodes: u.Nodes, Fingerprint: u.FingerprintHash, MetricsVersion: u.MetricsVersion, Metrics: u.Metrics,
			})
		}
		c := store.Settlement{Key: key, Used: used}
		if v.Adding.Decides() {
			d := aggregate.Decide(aggregate.Policy{Min: 3, Max: v.RepeatsMax, Metrics: []string{"output_tokens_per_s"}, Target: 0.025},
				aggregate.Counts{Planned: v.Repeats}, in.Runs, nil)
			c.Decision, in.HalfWidths = &d, d.HalfWidths()
		}
		if c.Sum, err = aggregate.Compute(in); err != nil {
			l.t.Fatal(err)
		}
		if done, err := l.store.SettleAll(l.t.Context(), []store.Settlement{c}); err != nil || done[0].Stale {
			l.t.Fatal(done, err)
		}
	}
}
