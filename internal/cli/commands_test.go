package cli

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"
	"github.com/spf13/cobra"

	"sbench/internal/api"
	"sbench/internal/lifecycle"
)

// measured is a lab with sweep 1: one setting measured twice, the other refused
// once and measured once.
func measured(t *testing.T) *lab {
	t.Helper()
	l := newLab(t)
	l.ok("submit", l.file("demo.yaml", demoSweep))
	l.submitted(1, 2, 3, 4)
	l.seal(1, 0, lifecycle.ExitMeasured, "", 100)
	l.seal(2, 1, lifecycle.ExitMeasured, "", 110)
	l.seal(3, 2, lifecycle.ExitMeasured, "", 200)
	l.seal(4, 3, lifecycle.ExitDriftArtefact, "ENV_DRIFT: image digest sha256:aa expected, sha256:bb realized", 0)
	l.settle(1)
	return l
}

func TestSubmitAndQueue(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	file := l.file("demo.yaml", demoSweep)
	if got := l.ok("submit", file); got != "Submitted sweep 1: 2 settings, 4 runs, about 0.4 GPU-hours\n" {
		t.Errorf("got %q", got)
	}
	if got := l.ok("submit", "--parsable", "-H", "-A", "physics", "-J", "held-one", "--priority", "urgent", "-b", "now+1hour", "-"); got != "2\n" {
		t.Errorf("got %q", got)
	}
	resp := asJSON[api.SubmitResponse](l, "submit", file)
	if resp.SweepID != 3 || resp.Plan.Runs != 4 {
		t.Errorf("got %+v", resp)
	}
	got := l.ok("queue", "-P", "-o", "id,name,user,account,priority,state,settings,runs,waiting")
	want := fmt.Sprintf("ID|NAME|USER|ACCOUNT|PRIORITY|STATE|SETTINGS|RUNS|WAITING\n1|demo|%[1]s|-|normal|pending|0/2|0/4|4\n2|held-one|%[1]s|physics|urgent|held|0/2|0/4|4\n3|demo|%[1]s|-|normal|pending|0/2|0/4|4\n", l.user)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-t", "held"}, "2\n"},
		{[]string{"-A", "physics"}, "2\n"},
		{[]string{"-u", "nobody"}, ""},
		{[]string{"--me", "-t", "pending,held"}, "1\n2\n3\n"},
		{[]string{"-t", "all"}, "1\n2\n3\n"},
	} {
		if got := l.ok(append([]string{"queue", "-n", "-P", "-o", "id"}, tc.args...)...); got != tc.want {
			t.Errorf("%v: got %q, want %q", tc.args, got, tc.want)
		}
	}
	if got := l.ok("queue", "--sweep", "2", "-n", "-P", "-o", "run,sweep,repeat,state"); got != "5|2|0|pending\n6|2|1|pending\n7|2|0|pending\n8|2|1|pending\n" {
		t.Errorf("got %q", got)
	}
	if got := strings.Count(l.ok("queue", "-r", "-n"), "\n"); got != 12 {
		t.Errorf("got %d runs", got)
	}
	if list := asJSON[[]api.SweepSummary](l, "queue"); len(list) != 3 || list[1].BeginAt == nil || list[1].Priority != "urgent" {
		t.Errorf("got %+v", list)
	}
	// No run has ended: nothing is known of when the sweep will.
	if got := l.ok("queue", "-n", "-P", "-o", "id,makespan,eta"); got != "1|-|-\n2|-|-\n3|-|-\n" {
		t.Errorf("got %q", got)
	}
	if text := l.ok("queue"); !strings.Contains(text, "MAKESPAN") || !strings.Contains(text, "ETA") {
		t.Errorf("got %s", text)
	}
	if text := l.ok("queue", "--start"); !strings.Contains(text, "BEGIN") || !strings.Contains(text, "ETA") {
		t.Errorf("got %s", text)
	}
	l.fails(exitUsage, `unknown column "jobs"`, "queue", "-o", "jobs")
}

func TestSubmit_Faults(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	file := l.file("demo.yaml", demoSweep)
	bad := l.file("bad.yaml", strings.Replace(demoSweep, "seed: 42", "sede: 42", 1))
	l.fails(exitUsage, `bad.yaml:16:5: unknown key "sede"`, "submit", bad)
	l.fails(exitUsage, "no such file", "submit", filepath.Join(l.dir, "nothing.yaml"))
	l.fails(exitUsage, "missing argument: SWEEP.yaml", "submit")
	l.fails(exitUsage, `unexpected argument "x"`, "submit", file, "x")
	l.fails(exitUsage, `--mail-type: "TIME_LIMIT" is none of`, "submit", "--mail-type=TIME_LIMIT", file)
	l.fails(exitUsage, "there is no sweep 1", "submit", "-d", "afterok:1", file)
	l.fails(exitRefused, "has no rate for all of this", "submit", "--max-cost", "5", file)
	l.fails(exitUsage, "does not go with", "submit", "--test-only", "--wait", file)
	l.fails(exitUsage, "no such site", "submit", "--site", "moon", file)
	l.fails(exitUsage, "no hardware of the site", "submit", "--gres", "gpu:b200:1", file)
	l.fails(exitRefused, "above --max-gpu-hours", "submit", "--max-gpu-hours", "0.001", file)
	l.fails(exitRefused, "site lab has no hardware", "submit", "--set", "hardware.gpu=h100-sxm", file)
	if err := os.Remove(filepath.Join(l.dir, "images/engine.sif")); err != nil {
		t.Fatal(err)
	}
	l.fails(exitRefused, "image.path: no such file", "submit", file)
	o := l.run("submit", "--json", bad)
	var doc failureDocument
	if err := json.Unmarshal([]byte(o.stderr), &doc); err != nil || doc.ExitStatus != exitUsage || len(doc.Diagnostics) == 0 || strings.Count(o.stderr, "\n") != 1 {
		t.Errorf("got %v, %s", err, o.stderr)
	}
	if list := asJSON[[]api.SweepSummary](l, "queue"); len(list) != 0 {
		t.Errorf("a refused sweep was stored: %+v", list)
	}
}

func TestSubmit_TestOnly(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	file := l.file("demo.yaml", "#SBENCH --repeats=3\n"+demoSweep+"reuse: {max_age: 30d}\n")
	o := l.run("submit", "--test-only", "--gres", "gpu:l4:1", file)
	if o.status != exitOK || o.stderr != "" {
		t.Errorf("got %+v", o)
	}
	for _, want := range []string{"runs       6", "arrays     ", "gpu_hours  about", "emulated hardware", "PARTITION", "rate", "Skipped\nnothing"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("%q is missing in\n%s", want, o.stdout)
		}
	}
	if resp := asJSON[api.SubmitResponse](l, "submit", "--test-only", file); resp.SweepID != 0 || resp.Plan.Runs != 6 {
		t.Errorf("got %+v", resp)
	}
	if list := asJSON[[]api.SweepSummary](l, "queue"); len(list) != 0 {
		t.Errorf("--test-only stored a sweep: %+v", list)
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	l := measured(t)
	o := l.run("results", "1")
	lines := strings.Split(strings.TrimSpace(o.stdout), "\n")
	if o.status != exitOK || len(lines) < 4 || !strings.Contains(o.stderr, "sweep 1 is not complete") {
		t.Fatalf("got %+v", o)
	}
	if f := strings.Fields(lines[0]); strings.Join(f, " ") != "SETTING rate CLASS VALID FINAL output_tokens_per_s" {
		t.Errorf("got %q", f)
	}
	if f := strings.Fields(lines[1]); f[1] != "2" || f[2] != "emulated" || f[3] != "2/2" || f[5] != "105" {
		t.Errorf("got %q", f)
	}
	if !strings.Contains(o.stdout, "4     emulated    1/2  yes") || !strings.Contains(o.stdout, "\n    ENV_DRIFT: image digest sha256:aa expected, sha256:bb realized\n") {
		t.Errorf("got\n%s", o.stdout)
	}
	r := asJSON[api.Results](l, "results", "1")
	if len(r.Settings) != 2 || r.Complete || *r.Settings[0].Metrics["output_tokens_per_s"].Mean != 105 || r.Settings[0].Metrics["output_tokens_per_s"].CILow != nil {
		t.Errorf("got %+v", r.Settings[0])
	}
	if s := r.Settings[1]; s.NValid != 1 || s.NTotal != 2 || !s.IsFinal || s.HardwareClass != "emulated" || len(s.Reasons) != 1 {
		t.Errorf("got %+v", s)
	}
	if text := l.ok("results", "1", "-P", "--metrics", "output_tokens_per_s"); !strings.Contains(text, "|1/2|yes|200|ENV_DRIFT: image") {
		t.Errorf("got %s", text)
	}
	l.fails(exitUsage, `unknown metric "ttft"`, "results", "1", "--metrics", "ttft")
	l.fails(exitUsage, "give one of them", "results", "1", "--csv", "--json")
	l.fails(exitFailed, "no such sweep 9", "results", "9")
	l.fails(exitUsage, `"x" is not the number of a sweep`, "results", "x")
}

func TestResults_Files(t *testing.T) {
	t.Parallel()
	l := measured(t)
	rows, err := csv.NewReader(strings.NewReader(l.ok("results", "1", "--csv"))).ReadAll()
	if err != nil || len(rows) != 3 {
		t.Fatalf("got %v, %v", rows, err)
	}
	first := map[string]string{}
	for i, name := range rows[0] {
		if _, twice := first[name]; twice {
			t.Errorf("column %s is there twice", name)
		}
		first[name] = rows[1][i]
	}
	for name, want := range map[string]string{
		"workload_arrival_rate_per_s": "2", "workload_duration_s": "100", "hardware_class": "emulated", "n_valid": "2", "is_final": "true",
		"output_tokens_per_s_mean": "105", "output_tokens_per_s_ci_low": "", "parallel_tensor": "1", "model_name": "tiny",
	} {
		if got, ok := first[name]; !ok || got != want {
			t.Errorf("%s: got %q (%v), want %q", name, got, ok, want)
		}
	}
	path := filepath.Join(l.dir, "r.parquet")
	l.ok("results", "1", "--parquet", path)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type row struct {
		Rate   *float64 `parquet:"workload_arrival_rate_per_s,optional"`
		Tensor *int64   `parquet:"parallel_tensor,optional"`
		Mean   *float64 `parquet:"output_tokens_per_s_mean,optional"`
		Low    *float64 `parquet:"output_tokens_per_s_ci_low,optional"`
		Final  *bool    `parquet:"is_final,optional"`
		Model  *string  `parquet:"model_name,optional"`
		NTotal *int64   `parquet:"n_total,optional"`
	}
	reader := parquet.NewGenericReader[row](f)
	defer reader.Close()
	got := make([]row, 3)
	if n, _ := reader.Read(got); n != 2 {
		t.Fatalf("read %d rows", n)
	}
	if r := got[1]; *r.Rate != 4 || *r.Tensor != 1 || *r.Mean != 200 || r.Low != nil || !*r.Final || *r.Model != "tiny" || *r.NTotal != 2 {
		t.Errorf("got %+v", r)
	}
	l.fails(exitFailed, "no such file or directory", "results", "1", "--parquet", filepath.Join(l.dir, "no/such/folder"))
}

func TestShow(t *testing.T) {
	t.Parallel()
	l := measured(t)
	sweep := asJSON[api.Sweep](l, "show", "sweep", "1")
	if sweep.State != "incomplete" || sweep.EndedAt == nil || len(sweep.RunList) != 4 || len(sweep.Transitions) != 12 || *sweep.File != demoSweep {
		t.Errorf("got %+v", sweep)
	}
	run := asJSON[api.Run](l, "show", "run", "4")
	if run.State != "dead" || *run.SlurmJobID != "70_3" || len(run.Attempts) != 1 || run.Attempts[0].SlurmJobID != "74" || *run.Attempts[0].ExitClass != "drift_artefact" {
		t.Errorf("got %+v", run)
	}
	if diff := cmp.Diff([]string{"ENV_DRIFT: image digest sha256:aa expected, sha256:bb realized"}, run.RefusalReasons); diff != "" {
		t.Error(diff)
	}
	st := asJSON[api.Setting](l, "show", "setting", run.SettingHash[:12])
	if len(st.Runs) != 2 || st.SettingHash != run.SettingHash {
		t.Errorf("got %+v", st)
	}
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"sweep", "1"}, []string{"lab (emulated hardware)", "2, 2 final, 1 complete", "3 complete, 1 dead", "ENV_DRIFT"}},
		{[]string{"run", "4"}, []string{"ENV_DRIFT", "drift_artefact", "pending", "submitted", "70_3"}},
		{[]string{"setting", run.SettingHash}, []string{"workload.arrival.rate", "Runs", "dead"}},
	} {
		text := l.ok(append([]string{"show"}, tc.args...)...)
		for _, want := range tc.want {
			if !strings.Contains(text, want) {
				t.Errorf("show %v: %q is missing in\n%s", tc.args, want, text)
			}
		}
	}
	l.fails(exitUsage, "unknown command", "show", "job", "1")
	l.fails(exitFailed, "no such run 99", "show", "run", "99")
	l.fails(exitUsage, "is not a setting's hash", "show", "setting", "xyz")
}

func TestDead(t *testing.T) {
	t.Parallel()
	l := measured(t)
	if text := l.ok("dead", "list", "-P", "-n"); !strings.HasPrefix(text, "4|1|") || !strings.Contains(text, "ENV_DRIFT") {
		t.Errorf("got %s", text)
	}
	if text := l.ok("dead", "show", "4"); !strings.Contains(text, "drift_artefact") {
		t.Errorf("got %s", text)
	}
	if r := asJSON[api.ActionResponse](l, "dead", "release", "4"); r.Runs != 1 {
		t.Errorf("got %+v", r)
	}
	if run := asJSON[api.Run](l, "show", "run", "4"); run.State != "pending" {
		t.Errorf("got %+v", run)
	}
	l.fails(exitFailed, "run 4 is pending", "dead", "release", "4")
	l.fails(exitUsage, "missing argument: RUN", "dead", "release")
	if list := asJSON[[]api.DeadRun](l, "dead", "list", "--sweep", "1"); len(list) != 0 {
		t.Errorf("got %+v", list)
	}
}

func TestActions(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	file := l.file("demo.yaml", demoSweep)
	l.ok("submit", file)
	l.ok("submit", file)
	hash := asJSON[api.Sweep](l, "show", "sweep", "1").Settings[0].SettingHash
	for _, tc := range []struct {
		args    []string
		runs    int
		sweeps  []int64
		comment string
	}{
		{[]string{"hold", "1"}, 4, []int64{1}, "a sweep"},
		{[]string{"release", "sweep", "1"}, 4, []int64{1}, "with its kind"},
		{[]string{"hold", "run", "1", "2"}, 2, []int64{1}, "runs"},
		{[]string{"release", "setting", hash[:8], "--sweep", "1"}, 2, []int64{1}, "a setting in a sweep"},
		{[]string{"cancel", "setting", hash}, 4, []int64{1, 2}, "a setting everywhere"},
		{[]string{"requeue", "1"}, 2, []int64{1}, "what was cancelled"},
		{[]string{"cancel", "--all", "-u", l.user, "--site", "lab"}, 6, []int64{1, 2}, "everything"},
		{[]string{"cancel", "--all"}, 0, []int64{}, "nothing is left"},
	} {
		r := asJSON[api.ActionResponse](l, tc.args...)
		if diff := cmp.Diff(tc.sweeps, r.Sweeps); r.Runs != tc.runs || diff != "" {
			t.Errorf("%s: %v: got %+v", tc.comment, tc.args, r)
		}
	}
	o := l.run("cancel", "1")
	if o.status != exitOK || o.stderr != "sbench: cancel: 0 runs of 0 sweeps; 4 runs were in no state for it\n" {
		t.Errorf("got %+v", o)
	}
	l.fails(exitUsage, "missing argument: ID", "cancel")
	l.fails(exitUsage, "missing argument: ID", "hold", "run")
	l.fails(exitUsage, "give one or the other", "cancel", "--all", "1")
	l.fails(exitUsage, "go with --all", "cancel", "-u", "ada", "1")
	l.fails(exitUsage, "--sweep goes with setting", "cancel", "run", "1", "--sweep", "1")
	l.fails(exitUsage, "is not the number of a run", "cancel", "run", "x")
	l.fails(exitFailed, "no such sweep: 99", "cancel", "99")
	l.fails(exitUsage, "unknown flag: --all", "hold", "--all")
}

func TestThrottle(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.ok("submit", l.file("demo.yaml", demoSweep))
	if r := asJSON[api.ThrottleResponse](l, "throttle", "1", "3"); r != (api.ThrottleResponse{SweepID: 1, MaxInflight: 3}) {
		t.Errorf("got %+v", r)
	}
	sweep, err := l.store.Sweep(t.Context(), 1)
	if err != nil || !strings.Contains(string(sweep.Options), `"max_inflight": 3`) {
		t.Errorf("%s, %v", sweep.Options, err)
	}
	o := l.run("throttle", "1", "0")
	if o.status != exitOK || o.stderr != "sbench: sweep 1: no limit of tasks at once; arrays in Slurm that are told: 0\n" {
		t.Errorf("got %+v", o)
	}
	if sweep, err = l.store.Sweep(t.Context(), 1); err != nil || strings.Contains(string(sweep.Options), "max_inflight") {
		t.Errorf("%s, %v", sweep.Options, err)
	}
	l.fails(exitUsage, "is not a number of tasks", "throttle", "1", "many")
	l.fails(exitUsage, "is not between 0 (no limit)", "throttle", "1", "2000000")
	l.fails(exitFailed, "no such sweep: 99", "throttle", "99", "1")
}

func TestSubmit_DependencyAndMail(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	file := l.file("demo.yaml", demoSweep)
	l.ok("submit", file)
	resp := asJSON[api.SubmitResponse](l, "submit", "-d", "afterany:1", "--mail-type", "begin,END", "--mail-user", "ada@example.org", file)
	if want := []string{"waits for sweep 1 to end (afterany)", "no mail will be sent: no mail program"}; !slices.Equal(resp.Notes, want) {
		t.Errorf("notes %q, want %q", resp.Notes, want)
	}
	if got := l.ok("queue", "-n", "-P", "-o", "id,dependency,reason"); got != "1|-|-\n2|afterany:1|waits for afterany:1\n" {
		t.Errorf("got %q", got)
	}
	text := l.ok("show", "sweep", "2")
	for _, want := range []string{"afterany:1", "waits for afterany:1", `mail_type=["BEGIN","END"]`, `mail_user="ada@example.org"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	l.fails(exitUsage, "--dependency after:1:9 can never be satisfied: there is no sweep 9", "submit", "-d", "after:1:9", file)
}

func TestSite(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	if text := l.ok("site", "list", "-P", "-n"); text != "lab|c1|emulated|active|-|-|-\n" {
		t.Errorf("got %q", text)
	}
	l.ok("site", "drain", "lab", "--reason", "new hall")
	l.fails(exitRefused, "drains it", "submit", l.file("demo.yaml", demoSweep))
	if s := asJSON[api.Site](l, "site", "pause", "lab"); s.Mode != "paused" || s.ChangedBy != l.user {
		t.Errorf("got %+v", s)
	}
	l.ok("site", "resume", "lab")
	l.ok("submit", filepath.Join(l.dir, "demo.yaml"))
	l.fails(exitFailed, "no such site", "site", "pause", "moon")
	l.fails(exitUsage, "unknown command", "site", "stop", "lab")
	if text := l.ok("site", "check", "lab", "--no-job", "-P"); text != "VERDICT|CHECK|SUBJECT|FOUND|TO_DO\npass|controller|-|cluster c1|-\n" {
		t.Errorf("got %q", text)
	}
	l.fails(exitFailed, "site lab is not as its file says: 1 check failed", "site", "check", "lab")
	l.fails(exitFailed, "no such site", "site", "check", "moon")
}

func TestLogs(t *testing.T) {
	t.Parallel()
	l := measured(t)
	if text := l.ok("logs", "1"); text != "verified\nmeasured\n" {
		t.Errorf("got %q", text)
	}
	if text := l.ok("logs", "1", "--runner", "-f"); text != "verified\nmeasured\n" {
		t.Errorf("got %q", text)
	}
	l.file("spool/batches/"+token+"/logs/slurm-70_0.log", "task 0\n")
	if text := l.ok("logs", "1", "--slurm"); text != "task 0\n" {
		t.Errorf("got %q", text)
	}
	l.fails(exitFailed, "has no engine log", "logs", "1", "--engine")
	l.fails(exitUsage, "one of them", "logs", "1", "--engine", "--slurm")
	// What a job left in the place of its log must not show the daemon's files.
	secret := l.file("secret", "sesame")
	if err := os.Symlink(secret, filepath.Join(l.dir, "results/attempts/1/71-r0/engine.log")); err != nil {
		t.Fatal(err)
	}
	l.fails(exitRefused, "is no plain file", "logs", "1", "--engine")
}

// A log is followed from before it exists until its run has ended.
func TestLogs_Follow(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.ok("submit", l.file("demo.yaml", demoSweep))
	l.submitted(1)
	var o output
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		o = l.run("logs", "1", "--slurm", "-f")
	}()
	path := l.file("spool/batches/"+token+"/logs/slurm-70_0.log", "one\n")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("two\n"); err != nil {
		t.Fatal(err)
	}
	l.seal(1, 0, lifecycle.ExitMeasured, "", 100)
	wg.Wait()
	if o.status != exitOK || o.stdout != "one\ntwo\n" {
		t.Errorf("got %+v", o)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	file := l.file("demo.yaml", demoSweep)
	var o output
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		o = l.run("submit", "--wait", file)
	}()
	l.awaitSweep(1)
	l.submitted(1, 2, 3, 4)
	for i := range int64(4) {
		l.seal(i+1, int(i), lifecycle.ExitMeasured, "", 100)
	}
	l.settle(1)
	wg.Wait()
	if o.status != exitOK || !strings.HasPrefix(o.stdout, "Submitted sweep 1") || !strings.Contains(o.stderr, "sweep 1: 4/4 runs ended, 2/2 settings final\n") || !strings.Contains(o.stderr, "sweep 1 is complete: 2 settings\n") {
		t.Errorf("got %+v", o)
	}
}

func TestWait_Incomplete(t *testing.T) {
	t.Parallel()
	l := measured(t)
	a := testApp()
	a.socket = l.socket
	err := a.waitAndJudge(t.Context(), a.client(), 1)
	f := failureOf(err)
	if f.status != exitIncomplete || f.message != "sweep 1 is incomplete: 1 of 2 settings are complete" || len(f.reasons) != 1 || !strings.Contains(f.reasons[0], "1/2 valid: ENV_DRIFT: image digest") {
		t.Errorf("got %+v", f)
	}
}

func TestWait_Interrupted(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	var o output
	var wg sync.WaitGroup
	wg.Add(1)
	file := l.file("demo.yaml", demoSweep)
	go func() {
		defer wg.Done()
		o = l.runContext(ctx, "submit", "-W", file)
	}()
	l.awaitSweep(1)
	cancel()
	wg.Wait()
	if o.status == exitOK || o.status == exitIncomplete {
		t.Errorf("got %+v", o)
	}
	if sweep := asJSON[api.SweepSummary](l, "show", "sweep", "1"); sweep.State != "pending" {
		t.Errorf("Ctrl-C touched the sweep: %+v", sweep)
	}
}

// awaitSweep polls until a sweep is stored.
func (l *lab) awaitSweep(id int64) {
	l.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := l.store.SweepView(l.t.Context(), id); err == nil {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("sweep %d was not submitted", id)
		}
	}
}

// A daemon that restarts must not end a wait; one that stays away ends it with 6.
func TestWait_DaemonAway(t *testing.T) {
	t.Parallel()
	a := testApp()
	a.socket = filepath.Join(t.TempDir(), "s")
	now := time.Now()
	a.now = func() time.Time { now = now.Add(time.Minute); return now }
	_, err := a.awaitSweep(t.Context(), a.client(), 1)
	if f := failureOf(err); f.status != exitUnreachable {
		t.Errorf("got %+v", f)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	l := measured(t)
	if text := l.ok("watch"); !strings.Contains(text, "demo") {
		t.Errorf("got %s", text)
	}
	if text := l.ok("watch", "1"); !strings.Contains(text, "sweep 1 demo: incomplete") || !strings.Contains(text, "4/4 runs ended, 1 failed or refused") {
		t.Errorf("got %s", text)
	}
	l.fails(exitUsage, "--interval", "watch", "--interval", "0")
	l.fails(exitFailed, "no such sweep", "watch", "9")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	if text := l.ok("version"); !strings.HasPrefix(text, "sbench ") {
		t.Errorf("got %s", text)
	}
	if text := l.ok("version", "--daemon"); !strings.Contains(text, "sbenchd test, which takes you for "+l.user) {
		t.Errorf("got %s", text)
	}
}

func TestUnavailableDatabase(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.store.Close()
	o := l.run("queue")
	if o.status != exitUnreachable && o.status != exitFailed {
		t.Errorf("got %+v", o)
	}
}

// Every command says how it can end, and is documented.
func TestHelp(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	walk(newRootCommand(testApp()), func(cmd *cobra.Command) {
		var b strings.Builder
		writeHelp(&b, cmd)
		help := b.String()
		for _, want := range []string{"NAME\n", "SYNOPSIS\n", "EXIT STATUS\n    0  done\n"} {
			if !strings.Contains(help, want) {
				t.Errorf("%s --help: %q is missing", cmd.CommandPath(), want)
			}
		}
		if cmd.Short == "" {
			t.Errorf("%s has no short text", cmd.CommandPath())
		}
		if !cmd.Hidden && cmd.Parent() != nil && cmd.Parent().Name() != "completion" && !strings.Contains(string(page), "`"+cmd.CommandPath()) {
			t.Errorf("docs/cli.md does not mention %s", cmd.CommandPath())
		}
		if !strings.Contains(roff(cmd, "x"), ".SH EXIT STATUS") {
			t.Errorf("%s: the manual page has no exit statuses", cmd.CommandPath())
		}
	})
}
