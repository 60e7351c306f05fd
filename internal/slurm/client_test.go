package slurm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// command writes a shell script that stands for a Slurm command.
func command(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/bash\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestAccounting_ColumnsOfTheVersion: what this Slurm's sacct does not have is left
// out, and asked for once.
func TestAccounting_ColumnsOfTheVersion(t *testing.T) {
	for _, tt := range []struct {
		name, lacks string
		calls       int64 // for two queries
		restarts    int
		gpus        int
		fails       bool
	}{
		{"24.11", "none", 2, 2, 4, false},
		{"22.05", "Restarts", 3, -1, 4, false},
		{"a version without several", "Restarts QOS AllocTRES", 5, -1, 0, false},
		{"without what is essential", "Submit", 2, 0, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			command(t, dir, "sacct", `lacks="`+tt.lacks+`"
declare -A values=([JobIDRaw]=9 [JobID]=8_3 [State]=COMPLETED [Submit]=1700000000 [Start]=1700000010 [End]=1700000020 [ElapsedRaw]=10
  [ExitCode]=0:0 [NodeList]=gpu1 [AllocTRES]=gres/gpu=4 [User]=u [Account]=ml [QOS]=normal [Partition]=gpu [Restarts]=2 [JobName]=sb)
for a in "$@"; do case $a in --format=*) IFS=, read -ra columns <<<"${a#--format=}" ;; esac; done
out=''
for c in "${columns[@]}"; do
  case " $lacks " in *" $c "*) echo "sacct: error: Invalid field requested: \"${c,,}\"" >&2; exit 1 ;; esac
  out+=${out:+$'\x1f'}${values[$c]}
done
echo "$out"
`)
			c := New(Config{BinDir: dir})
			for range 2 {
				a, err := c.Accounting(t.Context(), AccountingQuery{Jobs: []int64{8}})
				if tt.fails {
					if err == nil || !strings.Contains(err.Error(), "Invalid field") {
						t.Errorf("%+v, %v", a, err)
					}
					continue
				}
				if err != nil || len(a.Records) != 1 || len(a.Skipped) != 0 {
					t.Fatalf("%+v, %v", a, err)
				}
				if r := a.Records[0]; r.Raw != 9 || restartsOf(r) != tt.restarts || r.GPUs != tt.gpus || r.Name != "sb" || !r.Ended() {
					t.Errorf("%+v", r)
				}
			}
			if got := c.Stats()["sacct"].Calls; got != tt.calls {
				t.Errorf("%d calls, want %d", got, tt.calls)
			}
		})
	}
}

func restartsOf(r Record) int {
	if r.Restarts == nil {
		return -1
	}
	return *r.Restarts
}

func TestClient_EnvironmentIsScrubbed(t *testing.T) {
	for _, kv := range [][2]string{
		{"SBATCH_PARTITION", "debug"},
		{"SLURM_CPU_BIND", "cores"},
		{"SQUEUE_FORMAT", "%i"},
		{"SACCT_FORMAT", "jobid"},
		{"SLURM_CLUSTERS", "other"},
		{"SALLOC_QOS", "x"},
		{"TZ", "Asia/Kolkata"},
		{"LC_ALL", "C"},
		{"SECRET_TOKEN", "x"},
		{"SLURM_CONF", "/etc/other.conf"},
	} {
		t.Setenv(kv[0], kv[1])
	}
	dir := t.TempDir()
	dump := filepath.Join(dir, "env")
	command(t, dir, "squeue", "env | sort > "+dump+".squeue")
	command(t, dir, "sbatch", "env | sort > "+dump+".sbatch; pwd >> "+dump+".sbatch; echo 5")
	c := New(Config{BinDir: dir, Conf: "/site/slurm.conf", Env: []string{"SITE_KEY=1"}})
	if _, err := c.Queue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Submit(t.Context(), "x", true); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][]string{
		"squeue": {"SLURM_CONF=/site/slurm.conf", "SLURM_TIME_FORMAT=%s", "SLURM_BITSTR_LEN=0", "TZ=UTC", "LC_ALL=C.UTF-8", "SITE_KEY=1"},
		// The job inherits sbatch's environment.
		"sbatch": {"SLURM_CONF=/site/slurm.conf", "LC_ALL=C.UTF-8", "SITE_KEY=1"},
	} {
		b, err := os.ReadFile(dump + "." + file)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for line := range strings.Lines(string(b)) {
			got[strings.TrimSpace(line)] = true
			key, _, _ := strings.Cut(line, "=")
			if strings.HasPrefix(key, "SBATCH") || strings.HasPrefix(key, "SQUEUE") || strings.HasPrefix(key, "SACCT") || strings.HasPrefix(key, "SALLOC") ||
				key == "SECRET_TOKEN" || key == "SLURM_CPU_BIND" || key == "SLURM_CLUSTERS" || file == "sbatch" && (key == "TZ" || key == "SLURM_TIME_FORMAT") {
				t.Errorf("%s sees %s", file, line)
			}
		}
		for _, w := range want {
			if !got[w] {
				t.Errorf("%s does not see %s", file, w)
			}
		}
	}
}

func TestClient_TimeoutEndsTheWholeTree(t *testing.T) {
	dir := t.TempDir()
	command(t, dir, "squeue", "sleep 300 & sleep 300")
	c := New(Config{BinDir: dir, Timeout: 50 * time.Millisecond})
	start := time.Now()
	_, err := c.Queue(t.Context())
	var e *Error
	if !errors.As(err, &e) || !e.TimedOut || !errors.Is(err, ErrUnreachable) {
		t.Errorf("error is %v", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	got := c.Stats()["squeue"]
	got.Total = 0
	if diff := cmp.Diff(Calls{Calls: 1, Failures: 1, Timeouts: 1}, got); diff != "" {
		t.Error(diff)
	}
}

func TestClient_SubmitGivesUpWhileSbatchWaitsForRoom(t *testing.T) {
	dir := t.TempDir()
	command(t, dir, "sbatch", "echo 'sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying' >&2; sleep 300; echo 5")
	c := New(Config{BinDir: dir, SubmitTimeout: 100 * time.Second})
	start := time.Now()
	got, err := c.Submit(t.Context(), "x", true)
	if err != nil || got.Outcome != Ambiguous || !got.Backpressure {
		t.Errorf("%+v, %v", got, err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestClient_SubmitCancelledIsAmbiguous(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	command(t, dir, "sbatch", "touch "+started+"; sleep 300")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if _, err := os.Stat(started); err == nil {
				cancel()
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	got, err := New(Config{BinDir: dir}).Submit(ctx, "x", true)
	if err != nil || got.Outcome != Ambiguous {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestClient_MissingCommandIsAnErrorNotAnOutcome(t *testing.T) {
	if got, err := New(Config{BinDir: t.TempDir()}).Submit(t.Context(), "x", true); err == nil {
		t.Errorf("%+v without sbatch", got)
	}
}

func TestClient_UnreachableCaptured(t *testing.T) {
	for capt, program := range map[string]string{
		"squeue-ctld-down": "squeue", "squeue-ctld-stopped": "squeue", "squeue-munge-down": "squeue", "sacct-munge-down": "sacct", "scancel-ctld-down": "scancel",
	} {
		dir := t.TempDir()
		text, err := filepath.Abs(filepath.Join(captures, capt+".err"))
		if err != nil {
			t.Fatal(err)
		}
		command(t, dir, program, "cat "+text+" >&2; exit 1")
		c := New(Config{BinDir: dir})
		switch program {
		case "squeue":
			_, err = c.Queue(t.Context())
		case "sacct":
			_, err = c.Accounting(t.Context(), AccountingQuery{})
		case "scancel":
			err = c.Cancel(t.Context(), "1")
		}
		if !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: %v", capt, err)
		}
	}
	dir := t.TempDir()
	command(t, dir, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
	if _, err := New(Config{BinDir: dir}).Accounting(t.Context(), AccountingQuery{}); !errors.Is(err, ErrNoAccounting) {
		t.Errorf("error is %v", err)
	}
	command(t, dir, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
	if _, err := New(Config{BinDir: dir}).Queue(t.Context()); err == nil || errors.Is(err, ErrUnreachable) {
		t.Errorf("error is %v", err)
	}
}

func TestClient_Find(t *testing.T) {
	row := func(name, state, comment string) string {
		return strings.Join([]string{"7", "9", "2", state, "1000", "1010", "n1", "u", "None", comment, name}, `\x1f`) + `\x1e\n`
	}
	queueRow := func(name, state string) string { return row(name, state, "(null)") }
	// A site that rewrites names: nothing is found by them.
	renamed := func(rows string) string {
		return `case "$*" in *--name=*) ;; *) printf '` + rows + `' ;; esac`
	}
	record := func(name, state, nodes, elapsed string) string {
		return strings.Join([]string{"9", "7_2", state, "1000", "1010", "1020", elapsed, "1:0", nodes, "", "u", "a", "q", "p", "", name}, `\x1f`) + `\n`
	}
	for name, tt := range map[string]struct {
		squeue, sacct string
		presence      Presence
		found         []Found
		fails         bool
	}{
		"in the queue": {"printf '" + queueRow("sb-x", "RUNNING") + queueRow("sb-x", "COMPLETED") + "'", "exit 1", Known, []Found{{JobID: 7, Submit: at(1000), Queued: true}}, false},
		"ended before squeue was asked": {
			"true", "printf '" + record("sb-x", "COMPLETED", "n1", "10") + "'", Known,
			[]Found{{JobID: 7, Submit: at(1000), Ended: true, Begun: true}},
			false,
		},
		"lost while it waited": {
			"true", "printf '" + strings.ReplaceAll(record("sb-x", "PENDING", "None assigned", "0"), "1010", "Unknown") + "'", Known,
			[]Found{{JobID: 7, Submit: at(1000)}},
			false,
		},
		"nowhere":                  {"true", "true", Gone, nil, false},
		"another job":              {"printf '" + queueRow("sb-xy", "RUNNING") + "'", "true", Gone, nil, false},
		"no accounting":            {"true", "echo 'Slurm accounting storage is disabled' >&2; exit 1", Gone, nil, false},
		"the controller is down":   {"echo 'Unable to contact slurm controller' >&2; exit 1", "true", Unknown, nil, true},
		"the database is down":     {"true", "echo 'Problem talking to the database' >&2; exit 1", Unknown, nil, true},
		"a row nobody understands": {"printf 'what?'", "true", Unknown, nil, true},
		"by its comment":           {renamed(row("prefix_job", "PENDING", "sbench sb-t sweep=1")), "exit 1", Known, []Found{{JobID: 7, Submit: at(1000), Queued: true}}, false},
		"another's comment":        {renamed(row("job", "PENDING", "sbench sb-tt not-sb-t")), "true", Gone, nil, false},
		"another's row":            {renamed("what?"), "true", Gone, nil, false},
		"a row that may be ours":   {renamed("what? sb-t"), "true", Unknown, nil, true},
		"before the client's time": {"printf '" + strings.ReplaceAll(queueRow("sb-x", "PENDING"), "1000", "5") + "'", "exit 1", Known, []Found{{JobID: 7, Submit: at(5), Queued: true}}, false},
		"the trace of a refusal":   {"true", "printf '" + record("sb-x", "FAILED", "None assigned", "0") + "'", Gone, nil, false},
	} {
		dir := t.TempDir()
		command(t, dir, "squeue", tt.squeue)
		command(t, dir, "sacct", tt.sacct)
		presence, found, err := New(Config{BinDir: dir}).Find(t.Context(), "sb-x", "sb-t", at(900))
		if presence != tt.presence || (err != nil) != tt.fails {
			t.Errorf("%s: %v, %v", name, presence, err)
		}
		if diff := cmp.Diff(tt.found, found); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if _, _, err := New(Config{BinDir: t.TempDir()}).Find(t.Context(), "a,b", "", at(0)); err == nil {
		t.Error("a name that is two is searched for")
	}
}

func TestClient_ControlArguments(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	for _, p := range []string{"scontrol", "scancel"} {
		command(t, dir, p, `printf '%s' "`+p+`" >> `+log+`; printf ' %s' "$@" >> `+log+`; echo >> `+log)
	}
	c := New(Config{BinDir: dir})
	for _, err := range []error{
		c.Release(t.Context(), 7), c.ReleaseTasks(t.Context(), 7, 1, 3), c.ReleaseTasks(t.Context(), 7), c.Hold(t.Context(), 7), c.UpdateThrottle(t.Context(), 7, 3), c.Cancel(t.Context(), "7", "8_3", "9_[1-3,5]"), c.Cancel(t.Context()),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	want := "scontrol release 7\nscontrol release 7_1,7_3\nscontrol hold 7\nscontrol update JobId=7 ArrayTaskThrottle=3\nscancel 7 8_3 9_[1-3,5]\n"
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Error(diff)
	}
	for _, id := range []string{"", "0", "--me", "-u", "7 8", "7_[1-3", "7_*", "$(x)"} {
		if err := c.Cancel(t.Context(), id); err == nil {
			t.Errorf("scancel %q is called", id)
		}
	}
}

func TestClient_Limits(t *testing.T) {
	dir := t.TempDir()
	command(t, dir, "sacctmgr", `case "$*" in *assoc*) printf 'ml|normal|500||\n';; *qos*) printf 'normal|||200||\n';; esac`)
	got, err := New(Config{BinDir: dir}).Limits(t.Context(), "u", "ml", "")
	if err != nil {
		t.Fatal(err)
	}
	if got.MaxSubmit != 200 || got.Source != "QOS normal" {
		t.Errorf("%+v", got)
	}
}

// TestClient_Wall: the first limit of the partition's QOS, the job's QOS and the
// association counts, and the partition's own besides.
func TestClient_Wall(t *testing.T) {
	const partitions = "PartitionName=gpu Default=YES QoS=N/A MaxTime=1-00:00:00\nPartitionName=short Default=NO QoS=quick MaxTime=UNLIMITED\nPartitionName=free Default=NO QoS=N/A MaxTime=UNLIMITED"
	associations := map[string]string{"wide": "ml|normal|||2-00:00:00", "narrow": "ml|normal|||00:30:00", "none": "ml|normal|||"}
	qos := `printf 'normal|||||\nlong||12:00:00|||\nover|OverPartQOS|12:00:00|||\nlifted|PartitionTimeLimit||||\nquick||01:00:00|||\n'`
	for name, test := range map[string]struct {
		assoc, partitions, qos string
		want                   Wall
	}{
		"the default partition":           {"none", "", "", Wall{24 * time.Hour, "partition gpu"}},
		"an association below it":         {"narrow", "gpu", "", Wall{30 * time.Minute, "association of account ml"}},
		"an association above it":         {"wide", "gpu", "", Wall{24 * time.Hour, "partition gpu"}},
		"the QOS before the association":  {"narrow", "gpu", "long", Wall{12 * time.Hour, "QOS long"}},
		"the partition's QOS before both": {"narrow", "short", "long", Wall{time.Hour, "QOS quick of partition short"}},
		"OverPartQOS":                     {"narrow", "short", "over", Wall{12 * time.Hour, "QOS over"}},
		"PartitionTimeLimit":              {"none", "gpu", "lifted", Wall{}},
		"the longest of several":          {"none", "short,gpu", "", Wall{24 * time.Hour, "partition gpu"}},
		"one without a limit":             {"none", "gpu,free", "", Wall{}},
		"a partition that is not there":   {"narrow", "nowhere", "", Wall{}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			command(t, dir, "scontrol", "printf '%s\\n' '"+partitions+"'")
			command(t, dir, "sacctmgr", `case "$*" in *assoc*) printf '`+associations[test.assoc]+`\n';; *qos*) `+qos+`;; esac`)
			got, err := New(Config{BinDir: dir}).Wall(t.Context(), "u", "ml", test.partitions, test.qos)
			if err != nil || got != test.want {
				t.Errorf("%+v, %v; want %+v", got, err, test.want)
			}
		})
	}
	dir := t.TempDir()
	command(t, dir, "scontrol", "echo PartitionName=gpu MaxTime=10:00:00 Default=YES")
	command(t, dir, "sacctmgr", "echo 'You are not running a supported accounting_storage plugin' >&2; exit 1")
	if got, err := New(Config{BinDir: dir}).Wall(t.Context(), "u", "", "", ""); err != nil || got.Max != 10*time.Hour {
		t.Errorf("without accounting: %+v, %v", got, err)
	}
	command(t, dir, "sacctmgr", "echo 'Connection refused' >&2; exit 1")
	if got, err := New(Config{BinDir: dir}).Wall(t.Context(), "u", "", "", ""); err == nil || got.Max != 0 {
		t.Errorf("the database does not answer, and yet: %+v", got)
	}
}

// TestParseAssociations: of several associations the longest time counts.
func TestParseAssociations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0, "a||||01:00:00\n": time.Hour, "a||||01:00:00\nb||||02:00:00\n": 2 * time.Hour, "a||||01:00:00\nb||||\n": 0, "a||||\nb||||01:00:00\n": 0,
		"a||||01:00:00\na|b|c\n": time.Hour,
	} {
		if l, _ := parseAssociations(text); l.maxWall != want {
			t.Errorf("%q: %s, want %s", text, l.maxWall, want)
		}
	}
}

// TestWall_Captures: what a real 22.05 printed.
func TestWall_Captures(t *testing.T) {
	list, err := parsePartitions(capture(t, "scontrol-show-partition.out"))
	if err != nil {
		t.Fatal(err)
	}
	l, qos := parseAssociations(capture(t, "sacctmgr-show-assoc.out"))
	known := parseQOS(capture(t, "sacctmgr-show-qos.out"))
	if len(list) != 4 || qos != "normal" || len(known) != 4 || known["debug"].maxWall != 30*time.Minute || !slices.Equal(known["debug"].submit, []string{"2", "", ""}) {
		t.Errorf("%+v, %q, %+v", list, qos, known)
	}
	for names, want := range map[string]Wall{"": {48 * time.Hour, "partition gpu"}, "all": {24 * time.Hour, "partition all"}, "all,cpu": {48 * time.Hour, "partition cpu"}} {
		if got := wall(list, names, l, nil); got != want {
			t.Errorf("%q: %+v, want %+v", names, got, want)
		}
	}
	l.qos = known["debug"]
	if got := wall(list, "gpu", l, nil); got != (Wall{30 * time.Minute, "QOS debug"}) {
		t.Errorf("QOS debug: %+v", got)
	}
}
