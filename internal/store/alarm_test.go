package store_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/store"
)

// Each kind of alarm is raised by its cause, and none by a day without one.
func TestAlarms(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Second)
	s := pgtest.New(t).WithClock(func() time.Time { return now })
	limits := func() store.AlarmLimits {
		return store.AlarmLimits{Since: now.Add(-48 * time.Hour), Stuck: 8 * time.Hour, Stale: 72 * time.Hour, PassRate: 0.95, Attempts: 20}
	}
	kinds := func() map[string]store.Alarm {
		t.Helper()
		list, err := s.Alarms(t.Context(), limits())
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]store.Alarm{}
		for _, a := range list {
			out[a.Kind] = a
		}
		return out
	}
	id, runs := create(t, s, sweepOf("", 24, 1))
	submit(t, s, batchToken, runs[:24])
	if got := kinds(); len(got) != 0 {
		t.Fatalf("a new sweep: %+v", got)
	}
	now = now.Add(9 * time.Hour)
	if got := kinds(); len(got) != 1 || got[store.AlarmStuck].Subject != "sweep 1" || got[store.AlarmStuck].Value < 8 {
		t.Errorf("nothing has happened for 9 hours: %+v", got)
	}
	var attempts []store.NewAttempt
	for i, run := range runs[:24] {
		class := lifecycle.ExitStaging
		if i%4 == 0 {
			class = lifecycle.ExitDriftNode
		}
		attempts = append(attempts, attempt(run, int64(i+1), class, false))
	}
	judge(t, s, lifecycle.ActorCollect, attempts...)
	if a, ok := kinds()[store.AlarmPreflight]; !ok || a.Value != 0.75 || !strings.Contains(a.Detail, "6 of 24 attempts were refused") || !strings.Contains(a.Detail, "n1") {
		t.Errorf("a quarter was refused: %+v", a)
	}
	execute(t, s, `update sweep set state = 'incomplete', ended_at = $2, changed_at = $2 where id = $1`, id, now)
	if a, ok := kinds()[store.AlarmIncomplete]; !ok || a.Value != 2 || a.Bound != 2 {
		t.Errorf("a sweep without a valid run ended: %+v", a)
	}
	cron := store.NewCron{
		Name: "nightly", UserName: "ada", UID: 1000, Schedule: "0 22 * * *", TimeZone: "UTC", Overlap: "skip", CatchUp: "last", AtWindowEnd: "continue",
		Site: "lab", FileDigest: "x", SettingsDigest: "x", NSettings: 2, Options: json.RawMessage(`{}`),
	}
	if _, err := s.AddCron(t.Context(), cron); err != nil {
		t.Fatal(err)
	}
	list, err := s.Crons(t.Context(), "ada", "nightly")
	if err != nil {
		t.Fatal(err)
	}
	fire := func(state string, sweep *int64) {
		t.Helper()
		now = now.Add(time.Minute)
		if _, err := s.FireCron(t.Context(), list[0], 0, "ada"); err != nil {
			t.Fatal(err)
		}
		waiting, err := s.WaitingFirings(t.Context())
		if err != nil || len(waiting) != 1 {
			t.Fatal(waiting, err)
		}
		if err := s.MoveFiring(t.Context(), waiting[0].ID, state, "no room", sweep, 1); err != nil {
			t.Fatal(err)
		}
	}
	fire(store.FiringRefused, nil)
	if a, ok := kinds()[store.AlarmMissed]; !ok || a.Subject != "schedule nightly of ada" || !strings.Contains(a.Detail, "refused: no room") {
		t.Errorf("a firing was refused: %+v", a)
	}
	fire(store.FiringSubmitted, &id)
	if err := s.BeginNight(t.Context(), store.Night{SweepID: id, State: store.NightScreened, NCandidates: 3, Report: json.RawMessage(`{}`)}); err != nil {
		t.Fatal(err)
	}
	if got := kinds(); slices.Contains([]bool{hasAlarm(got, store.AlarmStale), hasAlarm(got, store.AlarmNight)}, true) {
		t.Errorf("too early: %+v", got)
	}
	now = now.Add(73 * time.Hour)
	got := kinds()
	if a := got[store.AlarmStale]; a.Value != 2 || !strings.Contains(a.Detail, "2 never had one") {
		t.Errorf("no valid result for three days: %+v", a)
	}
	if a := got[store.AlarmNight]; a.Value != 3 {
		t.Errorf("a night stays unjudged: %+v", got)
	}
	// A node is slower than it was, and another than the others, for the second night;
	// a node that is an outlier for the first time is none yet. The next night ends it.
	night := func(report string) {
		t.Helper()
		now = now.Add(24 * time.Hour)
		id, _ := create(t, s, sweepOf("night-"+now.Format(time.DateOnly), 1, 1))
		if err := s.BeginNight(t.Context(), store.Night{SweepID: id, State: store.NightJudged, Report: json.RawMessage(report)}); err != nil {
			t.Fatal(err)
		}
	}
	night(`{"references": [{"node": "n1", "metric": "ttft_p95", "change": 0.06, "nights": 9, "drift": true}, {"node": "n4", "metric": "ttft_p95", "change": 0.001, "nights": 9}],
		"nodes": [{"node": "n2", "metric": "ttft_p95", "effect": 0.08, "quarantine": true, "advice": "n2 is slower"}, {"node": "n3", "metric": "ttft_p95", "effect": 0.08, "advice": "watch it"}]}`)
	all, err := s.Alarms(t.Context(), limits())
	if err != nil {
		t.Fatal(err)
	}
	var drifts []store.Alarm
	for _, a := range all {
		if a.Kind == store.AlarmDrift {
			drifts = append(drifts, a)
		}
	}
	if len(drifts) != 2 || drifts[0].Subject != "node n1" || !strings.Contains(drifts[0].Detail, "6.0 % worse than in 9 nights before") || drifts[1].Value != 0.08 {
		t.Errorf("drifts %+v", drifts)
	}
	if night(`{"references": [], "nodes": []}`); hasAlarm(kinds(), store.AlarmDrift) {
		t.Error("the nodes are as they were, and still an alarm")
	}
	if night(`{"references": null, "nodes": null}`); hasAlarm(kinds(), store.AlarmDrift) {
		t.Error("an alarm of a night that looked at no node")
	}
	var outliers int
	if err := s.Pool().QueryRow(t.Context(), `select sum(cardinality(outlier_nodes)) from report.nights`).Scan(&outliers); err != nil || outliers != 2 {
		t.Errorf("report.nights has %d outliers, %v", outliers, err)
	}
	if hasAlarm(got, store.AlarmIncomplete) || hasAlarm(got, store.AlarmPreflight) {
		t.Errorf("older than two days: %+v", got)
	}
}

func hasAlarm(all map[string]store.Alarm, kind string) bool { _, ok := all[kind]; return ok }
