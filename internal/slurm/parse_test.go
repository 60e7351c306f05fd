package slurm

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const captures = "../../tests/conformance/slurm-22.05"

// columns2205 are the columns of the captures.
var columns2205 = slices.DeleteFunc(slices.Clone(accountingColumns), func(c string) bool { return c == "Restarts" })

// capture reads a capture; "" where the command printed nothing.
func capture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(captures, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

// exits are the exit statuses of the captures.
func exits(t *testing.T) map[string]int {
	t.Helper()
	all := map[string]int{}
	for line := range strings.Lines(capture(t, "INDEX.tsv")) {
		f := strings.Split(line, "\t")
		if n, err := strconv.Atoi(f[1]); err == nil {
			all[f[0]] = n
		}
	}
	return all
}

func queueNames() []string {
	var names []string
	for _, c := range queueColumns {
		names = append(names, c.name)
	}
	return names
}

func at(sec int64) time.Time { return time.Unix(sec, 0).UTC() }

func TestParseQueue_Captured(t *testing.T) {
	q := parseQueue(capture(t, "squeue-live.out"), queueNames())
	if len(q.Skipped) != 0 {
		t.Errorf("skipped %v", q.Skipped)
	}
	if len(q.Jobs) != 24 {
		t.Errorf("%d jobs, want 24", len(q.Jobs))
	}
	find := func(raw int64, task int) Job {
		for _, j := range q.Jobs {
			if j.Raw == raw && (task < 0 || j.Tasks.Has(task)) {
				return j
			}
		}
		t.Fatalf("no job %d task %d", raw, task)
		return Job{}
	}
	for _, want := range []Job{
		{ArrayID: 11, Raw: 26, Tasks: Indexes{{2, 2, 1}}, State: Running, Submit: at(1795973241), Start: at(1795973244), Nodes: []string{"gpu2"}, User: "root", Name: "sb-cancel"},
		{ArrayID: 11, Raw: 11, Tasks: Indexes{{3, 3, 1}}, State: Pending, Reason: "JobArrayTaskLimit", Submit: at(1795973241), User: "root", Name: "sb-cancel"},
		{ArrayID: 16, Raw: 16, Tasks: Indexes{{0, 200, 2}}, State: Pending, Reason: "JobHeldUser", Submit: at(1795973241), User: "root", Name: "sb-held"},
		{ArrayID: 14, Raw: 14, State: Pending, Reason: "JobHeldUser", Submit: at(1795973241), User: "root", Comment: "two\nlines", Name: "sb-weird|pipe"},
		{ArrayID: 2, Raw: 2, State: Cancelled, Reason: "JobHeldUser", Submit: at(1795972880), Start: at(1795973240), User: "root", Comment: "sb-def", Name: "sb-def\n\"q"},
	} {
		task := -1
		if i, ok := (JobID{Tasks: want.Tasks}).Task(); ok {
			task = i
		}
		if diff := cmp.Diff(want, find(want.Raw, task)); diff != "" {
			t.Error(diff)
		}
	}
	if got := q.Named("sb-steps"); len(got) != 2 {
		t.Errorf("%d jobs are named sb-steps, want 2", len(got))
	}
	if got := find(12, -1).State.Phase(); got != PhaseHolding {
		t.Errorf("the requeued job is %v", got)
	}
}

func TestParseAccounting_Captured(t *testing.T) {
	a := parseAccounting(capture(t, "sacct-ended.out"), columns2205)
	if len(a.Skipped) != 0 {
		t.Errorf("skipped %v", a.Skipped)
	}
	type view struct {
		State   State
		Start   int64
		End     int64
		Elapsed int
		Exit    [2]int
		GPUs    int
		Ended   bool
	}
	got := map[string][]view{}
	for _, r := range a.Records {
		v := view{State: r.State, Elapsed: int(r.Elapsed.Seconds()), Exit: [2]int{r.ExitCode, r.ExitSignal}, GPUs: r.GPUs, Ended: r.Ended()}
		if !r.Start.IsZero() {
			v.Start = r.Start.Unix() - 1795973241
		}
		if !r.End.IsZero() {
			v.End = r.End.Unix() - 1795973241
		}
		got[r.Name+"/"+strconv.FormatInt(r.Raw, 10)] = append(got[r.Name+"/"+strconv.FormatInt(r.Raw, 10)], v)
	}
	want := map[string][]view{
		"sb-time/6":                {{Timeout, 0, 64, 64, [2]int{}, 0, true}},
		"sb-fail/8":                {{Failed, 0, 1, 1, [2]int{3, 0}, 0, true}},
		"sb-segv/9":                {{Failed, 0, 1, 1, [2]int{0, 11}, 0, true}},
		"sb-requeue/10":            {{Requeued, 0, 3, 3, [2]int{}, 2, true}, {Completed, 9, 24, 15, [2]int{}, 2, true}},
		"sb-nodefail/12":           {{NodeFail, 0, 3, 3, [2]int{}, 8, true}, {Completed, 9, 49, 40, [2]int{}, 8, true}},
		"sb-nodefail-norequeue/13": {{NodeFail, 0, 3, 3, [2]int{}, 0, true}},
		"sb-preempted/19":          {{Preempted, 0, 3, 0, [2]int{}, 4, true}, {Completed, 9, 29, 20, [2]int{}, 4, true}},
		"sb-preempted-end/20":      {{Preempted, 0, 3, 3, [2]int{}, 4, true}},
		"sb-steps/21":              {{Failed, 0, 1, 1, [2]int{15, 0}, 1, true}},
		"sb-cancel/22":             {{Cancelled, 0, 3, 3, [2]int{}, 0, true}},
		"sb-cancel/11":             {{Completed, 31, 61, 30, [2]int{}, 0, true}},
	}
	for name, views := range want {
		if diff := cmp.Diff(views, got[name]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for _, r := range a.Records {
		if r.Raw == 22 && r.ByUID != 0 || r.Raw == 6 && r.ByUID != -1 {
			t.Errorf("%d: cancelled by %d", r.Raw, r.ByUID)
		}
		if task, ok := r.ID.Task(); r.Raw == 11 && (!ok || task != 3 || r.ID.Job != 11) {
			t.Errorf("the last task of an array has its id: %+v", r.ID)
		}
	}
	live := parseAccounting(capture(t, "sacct-live.out"), columns2205)
	for _, r := range live.Records {
		if r.State == Running && r.Ended() {
			t.Errorf("%d runs and has ended", r.Raw)
		}
	}
}

const synthetic = "../slurm-synthetic"

// Written by hand: what other versions say.
func TestParseAccounting_Synthetic(t *testing.T) {
	a := parseAccounting(capture(t, synthetic+"/sacct.out"), columns2205)
	if len(a.Skipped) != 1 || !strings.Contains(a.Skipped[0].Row, "sb-cut") {
		t.Errorf("skipped %v", a.Skipped)
	}
	type view struct {
		Phase Phase
		Ended bool
		Exit  [2]int
		Nodes int
		GPUs  int
	}
	got := map[int64]view{}
	for _, r := range a.Records {
		got[r.Raw] = view{r.State.RecordPhase(), r.Ended(), [2]int{r.ExitCode, r.ExitSignal}, len(r.Nodes), r.GPUs}
	}
	want := map[int64]view{
		60: {PhaseEnded, true, [2]int{}, 2, 0}, 61: {PhaseEnded, true, [2]int{}, 1, 0}, 70: {PhaseEnded, true, [2]int{137, 0}, 3, 0},
		71: {PhaseEnded, true, [2]int{1, 0}, 2, 0}, 72: {PhaseEnded, true, [2]int{0, 125}, 1, 1}, 73: {PhaseEnded, true, [2]int{}, 0, 0},
		75: {PhaseEnded, false, [2]int{}, 1, 0}, 76: {PhaseEnded, true, [2]int{1, 0}, 0, 0}, 77: {PhaseEnded, true, [2]int{}, 1, 0},
		78: {PhaseEnded, true, [2]int{}, 1, 0}, 79: {PhaseUnknown, false, [2]int{}, 0, 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseQueue_Synthetic(t *testing.T) {
	q := parseQueue(capture(t, synthetic+"/squeue.out"), queueNames())
	if len(q.Skipped) != 1 || !strings.Contains(q.Skipped[0].Row, "sb-cut") {
		t.Errorf("skipped %v", q.Skipped)
	}
	got := map[int64]Phase{}
	for _, j := range q.Jobs {
		got[j.Raw] = j.State.Phase()
	}
	want := map[int64]Phase{80: PhaseWaiting, 81: PhaseWaiting, 83: PhaseHolding, 84: PhaseWaiting, 86: PhaseUnknown, 87: PhaseHolding}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if text, stuck := Explain(q.Jobs[1].Reason); !stuck || text == "" {
		t.Errorf("%q %v", text, stuck)
	}
}

// capturedStepColumns are those of the captures, which are older than the energy.
var capturedStepColumns = slices.DeleteFunc(slices.Clone(stepColumns), func(c string) bool { return c == energyColumn })

// Without a plugin Slurm says 0; a counter that wrapped says more than the nodes
// can draw. Neither is an energy.
func TestParseSteps_Energy(t *testing.T) {
	for text, want := range map[string]float64{"": 0, "0": 0, "1200": 1200, "1.2K": 0, "-5": 0, "18446744073709551615": 0, "NaN": 0} {
		line := strings.Join([]string{"7.0", "COMPLETED", "100", "110", "10", "0:0", "n[1-2]", text, "sb-run-1"}, fieldSep)
		steps := parseSteps(line+"\n", stepColumns)
		if len(steps) != 1 || (steps[0].EnergyJ != nil) != (want > 0) || want > 0 && *steps[0].EnergyJ != want {
			t.Errorf("%q: %+v", text, steps)
		}
	}
}

func TestParseSteps_Captured(t *testing.T) {
	steps := parseSteps(capture(t, "sacct-steps-ended.out"), capturedStepColumns)
	var got []Step
	for _, s := range steps {
		if s.Raw == 21 {
			got = append(got, s)
		}
	}
	begin := at(1795973241)
	want := []Step{
		{Raw: 21, Step: "batch", Name: "batch", State: Failed, Start: begin, End: begin.Add(time.Second), Elapsed: time.Second, ExitCode: 15, Nodes: []string{"gpu1"}},
		{Raw: 21, Step: "0", Name: "sb-run-11", State: Completed, Start: begin.Add(time.Second), End: begin.Add(time.Second), Nodes: []string{"gpu1"}},
		{Raw: 21, Step: "1", Name: "sb-run-12", State: Failed, Start: begin.Add(time.Second), End: begin.Add(time.Second), ExitCode: 15, Nodes: []string{"gpu1"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A node that was lost leaves a batch step without an exit status.
	if !slices.ContainsFunc(steps, func(s Step) bool { return s.Raw == 13 && s.Step == "batch" && s.State == Cancelled }) {
		t.Error("the batch step of a lost node is missing")
	}
}

func TestParseAccounting_Hostile(t *testing.T) {
	record := func(fields ...string) string { return strings.Join(fields, fieldSep) }
	good := record("7", "7", "COMPLETED", "100", "110", "120", "10", "0:0", "n1", "", "u", "a", "q", "p", "sb-x")
	for name, tt := range map[string]struct {
		text    string
		records int
		skipped int
	}{
		"empty":                      {"", 0, 0},
		"good":                       {good + "\n", 1, 0},
		"name with newlines":         {good + "\nsecond\nthird\n" + good + "\n", 2, 0},
		"name with the separator":    {good + fieldSep + "more\n", 1, 0},
		"a local time":               {strings.Replace(good, "100", "2026-11-29T14:22:19", 1), 0, 1},
		"a negative id":              {"-" + good, 0, 1},
		"a truncated array":          {record("7", "7_[1,5,...]", "PENDING", "100", "Unknown", "Unknown", "0", "0:0", "None assigned", "", "u", "a", "q", "p", "sb-x"), 0, 1},
		"an unknown state":           {strings.Replace(good, "COMPLETED", "MELTED", 1), 1, 0},
		"an id past 64 bits":         {"99999999999999999999" + good, 0, 1},
		"text of another program":    {"sacct: this is not the end\n", 0, 1},
		"NUL and invalid UTF-8":      {good + "\x00\xff\n", 1, 0},
		"a bad exit status":          {strings.Replace(good, "0:0", "zero", 1), 0, 1},
		"a node list without an end": {strings.Replace(good, "n1", "n[1-", 1), 0, 1},
	} {
		a := parseAccounting(tt.text, columns2205)
		if len(a.Records) != tt.records || len(a.Skipped) != tt.skipped {
			t.Errorf("%s: %d records and %d skipped, want %d and %d: %v", name, len(a.Records), len(a.Skipped), tt.records, tt.skipped, a.Skipped)
		}
		for _, r := range a.Records {
			if r.State == "MELTED" && (r.Ended() || r.State.Phase() != PhaseUnknown) {
				t.Error("an unknown state is taken for an end")
			}
		}
	}
	half := parseAccounting(record("4", "4", "PENDING", "100", "100", "Unknown", "0", "0:0", "None assigned", "", "u", "a", "q", "", "allocation"), columns2205)
	if len(half.Records) != 1 || !half.Records[0].Placeholder() {
		t.Errorf("half-written record: %+v", half)
	}
	noEnd := parseAccounting(record("4", "4", "COMPLETED", "100", "100", "Unknown", "0", "0:0", "n1", "", "u", "a", "q", "p", "sb-x"), columns2205)
	if noEnd.Records[0].Ended() {
		t.Error("COMPLETED without an end is taken for final")
	}
}

func TestParseQueue_Hostile(t *testing.T) {
	fields := []string{"7", "7", "N/A", "RUNNING", "100", "110", "n1", "u", "None", "(null)", "sb-x"}
	record := func(edit ...string) string {
		f := slices.Clone(fields)
		for i := 0; i+1 < len(edit); i += 2 {
			n, _ := strconv.Atoi(edit[i])
			f[n] = edit[i+1]
		}
		return strings.Join(f, fieldSep) + recordSep + "\n"
	}
	for name, tt := range map[string]struct {
		text          string
		jobs, skipped int
	}{
		"good":              {record() + record(), 2, 0},
		"no id":             {record("1", "0"), 0, 1},
		"a cut array":       {record("2", "0,6,8-9,..."), 0, 1},
		"a name with lines": {record("10", "a\nb"), 1, 0},
		"missing columns":   {"7" + fieldSep + "8" + recordSep, 0, 1},
		"words":             {"slurm_load_jobs: something", 0, 1},
	} {
		q := parseQueue(tt.text, queueNames())
		if len(q.Jobs) != tt.jobs || len(q.Skipped) != tt.skipped {
			t.Errorf("%s: %d jobs, %d skipped, want %d, %d: %v", name, len(q.Jobs), len(q.Skipped), tt.jobs, tt.skipped, q.Skipped)
		}
	}
}

func TestParseIndexes(t *testing.T) {
	for text, want := range map[string]string{
		"3": "3", "1-5%2": "1-5", "[2,7-9%4]": "2,7-9", "0-200:2": "0-200:2", "[1-10:4]": "1-9:4", "[1%1]": "1", "0": "0",
	} {
		got, err := ParseIndexes(text)
		if err != nil || got.String() != want {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "[", "[]", "a", "1-", "-1", "5-1", "1,", "0,6,8-9,12-13,...,20,25-2", "[49,5...]", "1-5:0", "99999999", "1--2", "[1-3", "%2", "4000001"} {
		if got, err := ParseIndexes(text); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

func TestIndexesOf_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := rapid.SliceOfDistinct(rapid.IntRange(0, 300), func(i int) int { return i }).Draw(t, "set")
		slices.Sort(set)
		x := IndexesOf(set)
		if len(set) > 0 {
			back, err := ParseIndexes(x.String())
			if err != nil {
				t.Fatal(err)
			}
			x = back
		}
		var got []int
		for i := range x.All() {
			got = append(got, i)
			if !x.Has(i) {
				t.Fatalf("%v has no %d", x, i)
			}
		}
		if !slices.Equal(set, got) {
			t.Fatalf("%v, want %v", got, set)
		}
	})
}

func TestParseJobID(t *testing.T) {
	for text, want := range map[string]JobID{
		"12":         {Job: 12, Het: -1},
		"12_3":       {Job: 12, Tasks: Indexes{{3, 3, 1}}, Het: -1},
		"12_[4-6%2]": {Job: 12, Tasks: Indexes{{4, 6, 1}}, Het: -1},
		"60+1":       {Job: 60, Het: 1},
		"12_3.batch": {Job: 12, Tasks: Indexes{{3, 3, 1}}, Het: -1, Step: "batch"},
		"9+0.0":      {Job: 9, Het: 0, Step: "0"},
	} {
		got, err := ParseJobID(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	for _, text := range []string{"", "x", "0", "12_", "12.", "12 3", "12;lab", "-1", "12345678901", "12+", "12_[49,5...]"} {
		if got, err := ParseJobID(text); err == nil {
			t.Errorf("%q is taken for %+v", text, got)
		}
	}
}

func TestExpandHosts(t *testing.T) {
	for list, want := range map[string][]string{
		"n1":                 {"n1"},
		"gpu[1-2,05],l4-1":   {"gpu1", "gpu2", "gpu05", "l4-1"},
		"n[08-11]":           {"n08", "n09", "n10", "n11"},
		"r[1-2]n[1-2]":       {"r1n1", "r1n2", "r2n1", "r2n2"},
		"node[01-02]-int":    {"node01-int", "node02-int"},
		"nid00[408,411-412]": {"nid00408", "nid00411", "nid00412"},
	} {
		got, err := ExpandHosts(list)
		if err != nil {
			t.Errorf("%s: %v", list, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", list, diff)
		}
	}
	for _, list := range []string{"", ",", "n[", "n[1", "n]1", "n[2-1]", "n[]", "n[a]", "n[1-999999999]", "a[1-1000]b[1-1000]", "n 1", "n[1,,2]", "../x"} {
		if got, err := ExpandHosts(list); err == nil {
			t.Errorf("%q is taken for %d nodes", list, len(got))
		}
	}
}

func TestParseSettings_Captured(t *testing.T) {
	got, err := parseSettings(capture(t, "scontrol-show-config.out"))
	if err != nil {
		t.Fatal(err)
	}
	got.Raw = nil
	want := Settings{
		Version: "22.05.8", ClusterName: "lab", MaxArraySize: 100001, MaxJobCount: 100000,
		MinJobAge: 300 * time.Second, MessageTimeout: 10 * time.Second, KillWait: 5 * time.Second,
		JobRequeue: true, Accounting: true, StoresComment: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := parseSettings("MaxArraySize = many\n"); err == nil {
		t.Error("settings without numbers are accepted")
	}
}

func TestState_EveryStateHasAPhase(t *testing.T) {
	for _, s := range []State{
		Pending, Running, Suspended, Completed, Cancelled, Failed, Timeout, NodeFail, Preempted, BootFail, Deadline, OutOfMemory,
		Completing, Configuring, StageOut, Resizing, Signaling, Stopped, Requeued, RequeueFed, RequeueHold, SpecialExit, Revoked, ResvDelHold, LaunchFailed,
	} {
		if s.Phase() == PhaseUnknown {
			t.Errorf("%s has no phase", s)
		}
	}
	if Requeued.Phase() != PhaseWaiting || Requeued.RecordPhase() != PhaseEnded {
		t.Error("REQUEUED waits in the queue and is an end in the accounting database")
	}
	if s, uid := parseState("CANCELLED by 1002"); s != Cancelled || uid != 1002 {
		t.Errorf("%s %d", s, uid)
	}
}

func TestExplain(t *testing.T) {
	for reason, stuck := range map[string]bool{
		"launch failed requeued held": true, "JobHeldAdmin": true, "BadConstraints": true, "QOSGrpGRESMinutes": true, "AssocGrpBillingMinutes": true,
		"QOSMaxWallDurationPerJobLimit": true, "PartitionTimeLimit": true,
		"Resources": false, "Priority": false, "QOSGrpGRES": false, "AssocMaxJobsLimit": false, "JobArrayTaskLimit": false,
		"ReqNodeNotAvail, UnavailableNodes:nid00[408,411-415]": false, "SomethingNew": false,
		// Of two reasons the stuck one; a job that is too big for a limit waits for ever.
		"JobArrayTaskLimit,JobHeldUser": true, "JobHeldUser,JobArrayTaskLimit": true, "Priority,Resources": false, "ReqNodeNotAvail, JobHeldAdmin": true,
		"QOSMaxGRESPerJob": true, "QOSMaxNodePerJobLimit": true, "AssocMaxCpuPerJobLimit": true, "QOSMaxMemoryPerNode": true, "QOSMinGRESNotSatisfied": true,
		"QOSMaxGRESPerUser": false, "QOSMaxJobsPerUserLimit": false,
	} {
		text, got := Explain(reason)
		if got != stuck || text == "" {
			t.Errorf("%s: %q, stuck %v, want %v", reason, text, got, stuck)
		}
	}
}

func TestGPUs_TypedAndUntypedAreNotAdded(t *testing.T) {
	for tres, want := range map[string]int{
		"billing=34,cpu=8,gres/gpu:h100=2,gres/gpu=2,mem=64G,node=1": 2,
		"gres/gpu:h100=2,gres/gpu:l4=1":                              3,
		"cpu=1":                                                      0, "": 0, "gres/gpu=x": 0, "gres/gpu=-4": 0,
	} {
		if got := gpus(tres); got != want {
			t.Errorf("%q: %d, want %d", tres, got, want)
		}
	}
}
