package sweep_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/sweep"
)

// withMatrix is testdata/plain.yaml with another matrix.
func withMatrix(t testing.TB, matrix string) []byte {
	t.Helper()
	head, _, _ := strings.Cut(string(read(t, "testdata/plain.yaml")), "matrix:")
	return []byte(head + "matrix:\n" + matrix)
}

// points lists settings by the given axes.
func points(e sweep.Expansion, axes ...string) []string {
	var out []string
	for i := range e.Settings {
		values := e.Settings[i].Axes()
		var parts []string
		for _, a := range axes {
			parts = append(parts, fmt.Sprint(values[a]))
		}
		out = append(out, strings.Join(parts, " "))
	}
	return out
}

// TestExpand_Order: the first axis varies slowest, zip groups follow the axes,
// included points stand at the end.
func TestExpand_Order(t *testing.T) {
	t.Parallel()
	e := expand(t, withMatrix(t, `
  zip:
    - {parallel.tensor: [1, 2], hardware.gpus: [1, 2]}
  workload.seed: [2, 1]
  include:
    - {workload.seed: 9}
    - {workload.seed: 8, engine.args.threads: 4}
  engine.args.threads: [1, 2]
  where: engine.args.threads != '2' || workload.seed == 1
  exclude:
    - {workload.seed: 1, engine.args.threads: 1, hardware.gpus: 2}
`), sweep.Options{})
	want := []string{
		"2 1 1", "2 1 2", // seed 2: threads 2 is out
		"1 1 1", // and gpus 2 with threads 1
		"1 2 1", "1 2 2",
		"9 2 1", // the base's threads
		"8 4 1",
	}
	if diff := cmp.Diff(want, points(e, "workload.seed", "engine.args.threads", "parallel.tensor")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestExpand_Blocks: a block in the matrix replaces the base's block.
func TestExpand_Blocks(t *testing.T) {
	t.Parallel()
	e := expand(t, withMatrix(t, `
  workload.arrival:
    - {process: poisson, rate: 2/s}
    - {process: closed, concurrency: 4}
    - {process: gamma, rate: 120/min, burstiness: 0.5}
  exclude:
    - workload.arrival: {process: gamma}
      hardware.gpu: t4
`), sweep.Options{})
	want := []string{"poisson 2 <nil> <nil>", "closed <nil> 4 <nil>", "gamma 2 <nil> 0.5"}
	if diff := cmp.Diff(want, points(e, "workload.arrival.process", "workload.arrival.rate", "workload.arrival.concurrency", "workload.arrival.burstiness")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	e = expand(t, withMatrix(t, `
  workload.arrival: [{process: poisson, rate: 2/s}, {process: closed, concurrency: 4}]
  exclude: [{workload.arrival: {process: closed}}]
`), sweep.Options{})
	if len(e.Settings) != 1 {
		t.Errorf("the block is not excluded: %v", points(e, "workload.arrival.process"))
	}
}

// TestExpand_ExcludeSpelling: values are compared, not their spellings.
func TestExpand_ExcludeSpelling(t *testing.T) {
	t.Parallel()
	e := expand(t, withMatrix(t, `
  workload.arrival.rate: [1/s, 60/min, 2/s]
  environment.sm_clock: [1.41GHz, unpinned]
  exclude:
    - {workload.arrival.rate: 120/min}
    - {environment.sm_clock: 1410MHz}
`), sweep.Options{})
	if diff := cmp.Diff([]string{"1 unpinned"}, points(e, "workload.arrival.rate", "environment.sm_clock")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(e.Warnings) != 1 || !strings.Contains(e.Warnings[0].Message, "1 setting is equal to an earlier one") {
		t.Errorf("warnings:\n%s", e.Warnings.Text())
	}
}

// TestExpand_Options: the command line wins everywhere.
func TestExpand_Options(t *testing.T) {
	t.Parallel()
	switches, repeats := 2, 7
	e := expand(t, withMatrix(t, `
  workload.arrival.rate: [4/s, 8/s]
  engine.args.threads: [1, 2]
  include: [{workload.arrival.rate: 2/s, engine.args.threads: 8}]
`), sweep.Options{
		Set: []string{
			"workload.arrival.rate=6/s", "engine.version=0.20", "model.name=a=b", "engine.args.x=0.10", "workload.request.ignore_eos=false",
			"workload.input_tokens={distribution: constant, value: 7}", "parallel.tensor=4",
		},
		GRES: "gpu:h100:4", HardwareByGRES: func(g string) (string, bool) { return "h100-sxm", g == "gpu:h100" },
		Constraint: "isl1", Switches: &switches, Exclusive: true, Repeats: &repeats,
	})
	want := []string{
		"1 6 0.20 a=b 0.10 false 7 h100-sxm 4 isl1 2 node",
		"2 6 0.20 a=b 0.10 false 7 h100-sxm 4 isl1 2 node",
		"8 6 0.20 a=b 0.10 false 7 h100-sxm 4 isl1 2 node",
	}
	got := points(e, "engine.args.threads", "workload.arrival.rate", "engine.version", "model.name", "engine.args.x", "workload.request.ignore_eos",
		"workload.input_tokens.value", "hardware.gpu", "hardware.gpus", "hardware.constraint", "hardware.switches", "hardware.placement")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if e.Runs != 21 || e.Repeats.Max != 7 {
		t.Errorf("%d runs, %+v", e.Runs, e.Repeats)
	}
	if len(e.Warnings) != 1 || !strings.Contains(e.Warnings[0].Message, "its 2 values in the matrix are not used") {
		t.Errorf("warnings:\n%s", e.Warnings.Text())
	}
}

// TestExpand_OptionFaults: faults of the command line name the option.
func TestExpand_OptionFaults(t *testing.T) {
	t.Parallel()
	zero := 0
	none := func(string) (string, bool) { return "", false }
	for _, c := range []struct {
		options sweep.Options
		want    string
	}{
		{sweep.Options{Set: []string{"x"}}, `--set: "x" is not key=value`},
		{sweep.Options{Set: []string{"=1"}}, `--set: "=1" is not key=value`},
		{sweep.Options{Set: []string{"hardware.gpsu=1"}}, `--set hardware.gpsu: unknown axis "hardware.gpsu"`},
		{sweep.Options{Set: []string{"hardware.gpus=two"}}, `--set hardware.gpus:1:1: hardware.gpus is a whole number, not "two"`},
		{sweep.Options{Set: []string{"workload.duration=5"}}, `--set workload.duration:1:1: workload.duration: duration "5" has no unit: write it like 300s, 5m or 1h30m`},
		{sweep.Options{Set: []string{"model.name=a\nb"}}, `--set model.name:1:1: model.name contains a line break: "a\nb"`},
		{sweep.Options{Set: []string{"workload.arrival={process: closed"}}, `--set workload.arrival:1:1: not valid YAML: did not find expected ',' or '}'`},
		{sweep.Options{Set: []string{"engine.roles=[]"}}, `--set engine.roles: engine.roles is reserved for disaggregated engines and cannot be used yet`},
		{sweep.Options{GRES: "gpu"}, `--gres: "gpu" is not a GRES of GPUs`},
		{sweep.Options{GRES: "craynetwork:1"}, `--gres: "craynetwork:1" is not a GRES of GPUs`},
		{sweep.Options{GRES: "gpu:b200:1", HardwareByGRES: none}, `--gres: no hardware of the site has the GRES "gpu:b200"`},
		{sweep.Options{Repeats: &zero}, `--repeats: 0 is not between 1 and 1000`},
		{sweep.Options{Constraint: "$(id)"}, `sweep.yaml: hardware.constraint is not a Slurm feature expression: "$(id)" (the command line sets it)`},
		{sweep.Options{GRES: "gpu:4"}, `sweep.yaml: parallel.tensor × pipeline × data = 1 × 1 × 1 = 1, but hardware.gpus × nodes = 4 × 1 = 4 (the command line sets it)`},
	} {
		f, _ := sweep.Parse(read(t, "testdata/plain.yaml"), "sweep.yaml")
		e, list := sweep.Expand(f, c.options)
		if len(list) == 0 || list[0].String() != c.want || e.Settings != nil {
			t.Errorf("%+v:\n%s\nwant %s", c.options, list.Text(), c.want)
		}
	}
}

// TestExpand_Limit: a matrix that is too large is refused before it is built.
func TestExpand_Limit(t *testing.T) {
	t.Parallel()
	var huge strings.Builder
	for i := range 60 {
		fmt.Fprintf(&huge, "  engine.args.a%d: [1, 2, 3, 4, 5, 6, 7, 8]\n", i)
	}
	for _, c := range []struct {
		matrix string
		limit  int
		want   string
	}{
		{huge.String(), 0, "the matrix has more than 100000 settings"},
		{huge.String() + "  where: workload.seed == 1\n", 0, "the matrix has more than 1000000 points before where and exclude"},
		{"  workload.seed: [1, 2, 3]\n", 2, "the matrix has more than 2 settings"},
		{"  workload.seed: [1, 2, 3]\n  where: workload.seed > 0\n", 2, "the matrix has more than 2 settings"},
		{"  workload.seed: [1, 2, 3]\n  where: workload.seed > 1\n", 2, ""},
		{"  workload.seed: [1, 2]\n  include: [{workload.seed: 3}]\n", 2, "the matrix has more than 2 settings"},
		{"  workload.seed: [1, 2]\n  include: [{workload.seed: 2}]\n", 2, ""},
	} {
		start := time.Now()
		f, list := sweep.Parse(withMatrix(t, c.matrix), "sweep.yaml")
		if f == nil {
			t.Fatal(list.Text())
		}
		_, list = sweep.Expand(f, sweep.Options{Limit: c.limit})
		got := ""
		if errs := list.Errors(); len(errs) > 0 {
			got = errs[0].Message
		}
		if got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%q took %v", c.want, took)
		}
	}
}

// TestExpand_MaxRuns: repeats multiply a matrix; their product is bounded too,
// whether the file or the command line gives them.
func TestExpand_MaxRuns(t *testing.T) {
	t.Parallel()
	var seeds []string
	for i := range sweep.MaxRuns/sweep.MaxRepeats + 1 {
		seeds = append(seeds, strconv.Itoa(i))
	}
	most, none := sweep.MaxRepeats, ""
	for _, c := range []struct {
		seeds   int
		repeats *int
		want    string
	}{
		{len(seeds), &most, "the sweep has more than 500000 runs: 1000 of each setting"},
		{len(seeds) - 1, &most, none},
		{len(seeds), nil, none},
	} {
		f, list := sweep.Parse(withMatrix(t, "  workload.seed: ["+strings.Join(seeds[:c.seeds], ", ")+"]\n"), "sweep.yaml")
		if f == nil {
			t.Fatal(list.Text())
		}
		e, list := sweep.Expand(f, sweep.Options{Repeats: c.repeats})
		got := none
		if errs := list.Errors(); len(errs) > 0 {
			got = errs[0].Message
		}
		if got != c.want || got == none && e.Runs != c.seeds*e.Repeats.Runs() {
			t.Errorf("%d settings: %q and %d runs, want %q", c.seeds, got, e.Runs, c.want)
		}
	}
}

// TestParse_Directives: #SBENCH lines of the head comment.
func TestParse_Directives(t *testing.T) {
	t.Parallel()
	text := "# title\n#SBENCH -p gpu --wait\n\n#SBENCH\t--name \"a b\" # why\n##SBENCH no\n #SBENCH no\n#SBENCHx no\n#SBENCH\n" +
		string(read(t, "testdata/plain.yaml")) + "#SBENCH -p late\n"
	f, list := sweep.Parse([]byte(text), "f")
	if f == nil {
		t.Fatal(list.Text())
	}
	want := []sweep.Directive{{Line: 2, Text: "-p gpu --wait"}, {Line: 4, Text: `--name "a b" # why`}, {Line: 8, Text: ""}}
	if diff := cmp.Diff(want, f.Directives); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestParse_Head: what the file says beside its settings.
func TestParse_Head(t *testing.T) {
	t.Parallel()
	f, list := sweep.Parse(read(t, "testdata/manual.yaml"), "f")
	if f == nil {
		t.Fatal(list.Text())
	}
	type head struct {
		Name     string
		Priority sweep.Priority
		Repeats  sweep.Repeats
		Reuse    sweep.Reuse
		SLO      map[string]time.Duration
	}
	want := head{
		"llama-8b-nightly", sweep.PriorityNormal,
		sweep.Repeats{Min: 3, Max: 10, Until: &sweep.Until{Metrics: []string{"output_tokens_per_s", "ttft_p95"}, RelativeCI: 0.025}},
		sweep.Reuse{Given: true, MaxAge: 720 * time.Hour, Canary: 0.02},
		map[string]time.Duration{"ttft_p99": 500 * time.Millisecond, "tpot_p99": 50 * time.Millisecond},
	}
	if diff := cmp.Diff(want, head{f.Name, f.Priority, f.Repeats, f.Reuse, f.SLO}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestWhere: the operators and functions of the manual.
func TestWhere(t *testing.T) {
	t.Parallel()
	for condition, want := range map[string]int{ // of workload.seed 1 to 4
		"workload.seed in [1, 3]":                                               2,
		"workload.seed % 2 == 0 && !(workload.seed == 4)":                       1,
		"workload.seed ** 2 <= 9":                                               3,
		"max(workload.seed, 3) == 3":                                            3,
		"abs(workload.seed - 3) < 2 ? workload.seed > 2 : false":                2,
		"floor(workload.seed / 2) == 1 || ceil(workload.seed / 4) > 1":          2,
		"round(workload.seed / 4) == 1":                                         3,
		"hardware.gpu in ['l4', 'h100-sxm'] && workload.seed >= 2":              3,
		"model.name startsWith 'ti' && model.name endsWith 'ny'":                4,
		"model.name contains 'xx'":                                              0,
		"model.name matches '^t.n.$'":                                           4,
		"int(engine.args.threads) + workload.seed == 3":                         1,
		"engine.args[\"threads\"] == '2'":                                       4,
		"len(engine.args) == 1 && len(model.name) == 4":                         4,
		"engine.args['no-such-option'] == ''":                                   4,
		"workload.duration == 100 && workload.arrival.rate == 8":                4,
		"workload.arrival.process == 'closed' || workload.arrival.rate < 9":     4,
		"workload.request.stream":                                               4,
		"environment.driver == 'unpinned' && hardware.placement != 'node'":      4,
		"parallel.tensor * parallel.pipeline == hardware.gpus * hardware.nodes": 4,
		"min(1.5, workload.seed) == 1.5 and not (workload.seed == 2)":           2,
		"float(workload.seed) / 2 > 1.2":                                        2,
	} {
		f, list := sweep.Parse(withMatrix(t, "  workload.seed: [1, 2, 3, 4]\n  where: [\""+strings.ReplaceAll(condition, `"`, `\"`)+"\"]\n"), "f")
		if f == nil {
			t.Errorf("%s\n%s", condition, list.Text())
			continue
		}
		e, list := sweep.Expand(f, sweep.Options{})
		if len(e.Settings) != want {
			t.Errorf("%s: %d settings, want %d\n%s", condition, len(e.Settings), want, list.Text())
		}
	}
}
