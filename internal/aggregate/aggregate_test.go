package aggregate_test

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/aggregate"
	"sbench/internal/metrics"
	"sbench/internal/result"
)

// runsOf gives each value of a metric to a run of its own.
func runsOf(metric string, values ...float64) []aggregate.Run {
	runs := make([]aggregate.Run, len(values))
	for i := range values {
		runs[i] = aggregate.Run{
			AttemptID: int64(i + 1), Nodes: []string{string(rune('a' + i%26))}, Fingerprint: "f", MetricsVersion: "v1",
			Metrics: result.Metrics{metric: &values[i]},
		}
	}
	return runs
}

func compute(t *testing.T, in aggregate.Input) aggregate.Summary {
	t.Helper()
	s, err := aggregate.Compute(in)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func near(got *float64, want float64) bool {
	return got != nil && math.Abs(*got-want) <= 1e-9*math.Max(1, math.Abs(want))
}

func value(v *float64) any {
	if v == nil {
		return nil
	}
	return *v
}

// TestCompute_Vectors: known answers, on the linear and on the log scale.
func TestCompute_Vectors(t *testing.T) {
	t.Parallel()
	t975df4 := 2.7764451051977934 // Student's t, 4 degrees of freedom
	sample := []float64{101, 99.5, 100.2, 98.7, 103.1}
	var sumLog, squares float64
	for _, v := range sample {
		sumLog += math.Log(v) / 5
	}
	for _, v := range sample {
		squares += (math.Log(v) - sumLog) * (math.Log(v) - sumLog)
	}
	h := t975df4 * math.Sqrt(squares/4) / math.Sqrt(5)
	for name, test := range map[string]struct {
		metric              string
		values              []float64
		mean, sd, low, high float64
	}{
		"linear":       {"concurrency_max", sample, 100.5, 1.6837458240482738, 98.4093534282, 102.5906465718},
		"three":        {"requests_offered", []float64{10, 11, 12}, 11, 1, 11 - 2.4841377118, 11 + 2.4841377118},
		"log":          {"output_tokens_per_s", sample, 100.5, 1.6837458240482738, math.Exp(sumLog - h), math.Exp(sumLog + h)},
		"cancellation": {"requests_offered", []float64{1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16}, 1e9 + 10, math.Sqrt(30), 1e9 + 10 - 8.7154909254, 1e9 + 10 + 8.7154909254},
		"no spread":    {"output_tokens_per_s", []float64{5, 5, 5}, 5, 0, 5, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := compute(t, aggregate.Input{NTotal: len(test.values), Runs: runsOf(test.metric, test.values...)}).Metrics[test.metric]
			if m.N != len(test.values) || !near(m.Mean, test.mean) || !near(m.StdDev, test.sd) || !near(m.CILow, test.low) || !near(m.CIHigh, test.high) {
				t.Errorf("n %d mean %v sd %v [%v, %v]", m.N, value(m.Mean), value(m.StdDev), value(m.CILow), value(m.CIHigh))
			}
		})
	}
}

func TestCompute_FewRuns(t *testing.T) {
	t.Parallel()
	for n := range 3 {
		s := compute(t, aggregate.Input{NTotal: 3, Runs: runsOf("output_tokens_per_s", []float64{10, 12}[:n]...)})
		m := s.Metrics["output_tokens_per_s"]
		if m.CILow != nil || m.CIHigh != nil || m.RelativeCI != nil {
			t.Errorf("%d runs have an interval", n)
		}
		if (m.Mean != nil) != (n > 0) || (m.StdDev != nil) != (n > 1) {
			t.Errorf("%d runs: mean %v, sd %v", n, value(m.Mean), value(m.StdDev))
		}
		if n == 0 && m.NullReason == "" {
			t.Error("null without a reason")
		}
		if s.NValid != n || s.NTotal != 3 || s.IsFinal {
			t.Errorf("%d/%d final %v", s.NValid, s.NTotal, s.IsFinal)
		}
	}
}

// TestCompute_UndefinedRun: the mean of the runs that have a value would be the
// mean of the lucky ones.
func TestCompute_UndefinedRun(t *testing.T) {
	t.Parallel()
	runs := runsOf("e2e_p99", 1, 1, 1)
	runs[1].Metrics["e2e_p99"] = nil
	runs[1].NullReasons = map[string]string{"e2e_p99": "infinite: 20 of 1000 requests failed"}
	merged := 1.5
	s := compute(t, aggregate.Input{NTotal: 3, Runs: runs, Merge: func([]int64) (aggregate.Merged, error) {
		return aggregate.Merged{Metrics: result.Metrics{"e2e_p99": &merged}}, nil
	}})
	m := s.Metrics["e2e_p99_mean_of_runs"]
	if m.Mean != nil || m.N != 2 || !strings.Contains(m.NullReason, "1 of 3 runs: infinite") {
		t.Errorf("%+v", m)
	}
	m = s.Metrics["e2e_p99_merged"]
	if m.Mean == nil || m.CILow != nil {
		t.Errorf("merged: mean %v, low %v: an interval where a run is infinite", value(m.Mean), value(m.CILow))
	}
}

func TestCompute_Merged(t *testing.T) {
	t.Parallel()
	point := 0.5
	runs := runsOf("ttft_p95", 0.4, 0.5, 0.7)
	s := compute(t, aggregate.Input{NTotal: 3, Runs: runs, Merge: func(attempts []int64) (aggregate.Merged, error) {
		if !slices.Equal(attempts, []int64{1, 2, 3}) {
			t.Errorf("merged attempts %v", attempts)
		}
		return aggregate.Merged{Metrics: result.Metrics{"ttft_p95": &point}, NullReasons: map[string]string{"ttft_p99": "few"}}, nil
	}})
	logs := []float64{math.Log(0.4), math.Log(0.5), math.Log(0.7)}
	mean := (logs[0] + logs[1] + logs[2]) / 3
	var squares float64
	for _, l := range logs {
		squares += (l - mean) * (l - mean)
	}
	h := 4.302652729911275 * math.Sqrt(squares/2) / math.Sqrt(3)
	m := s.Metrics["ttft_p95_merged"]
	if !near(m.Mean, 0.5) || !near(m.CILow, 0.5*math.Exp(-h)) || !near(m.CIHigh, 0.5*math.Exp(h)) || m.Scale != "log" {
		t.Errorf("%v [%v, %v] %s", value(m.Mean), value(m.CILow), value(m.CIHigh), m.Scale)
	}
	if m := s.Metrics["ttft_p99_merged"]; m.Mean != nil || m.NullReason != "few" {
		t.Errorf("p99 %+v", m)
	}
	if _, ok := s.Metrics["ttft_p95"]; ok {
		t.Error("a percentile over runs without a word that says how")
	}
	if _, ok := s.Metrics["ttft_p95_r7_merged"]; ok {
		t.Error("numpy's rule has no merged form")
	}
	failure := errors.New("disk")
	if _, err := aggregate.Compute(aggregate.Input{Runs: runs, Merge: func([]int64) (aggregate.Merged, error) {
		return aggregate.Merged{}, failure
	}}); !errors.Is(err, failure) {
		t.Errorf("error %v", err)
	}
}

func TestCompute_Mixed(t *testing.T) {
	t.Parallel()
	runs := runsOf("output_tokens_per_s", 10, 20, 10, 20, 10)
	for _, i := range []int{1, 3} {
		runs[i].Fingerprint = "g"
	}
	var merged []int64
	s := compute(t, aggregate.Input{NTotal: 5, Terminal: true, Runs: runs, Merge: func(attempts []int64) (aggregate.Merged, error) {
		merged = attempts
		return aggregate.Merged{Metrics: result.Metrics{}}, nil
	}})
	if !s.Mixed || s.NValid != 5 || *s.Metrics["output_tokens_per_s"].Mean != 10 || s.Metrics["output_tokens_per_s"].N != 3 {
		t.Errorf("mixed %v, n_valid %d, %+v", s.Mixed, s.NValid, s.Metrics["output_tokens_per_s"])
	}
	if diff := cmp.Diff([]aggregate.Group{{"f", []int64{1, 3, 5}}, {"g", []int64{2, 4}}}, s.Groups); diff != "" {
		t.Errorf("groups: %s", diff)
	}
	if !slices.Equal(merged, []int64{1, 3, 5}) {
		t.Errorf("merged %v", merged)
	}
	if !slices.ContainsFunc(s.Warnings, func(w aggregate.Warning) bool { return w.Code == aggregate.WarnMixed }) {
		t.Errorf("warnings %v", s.Warnings)
	}
}

func TestCompute_Describe(t *testing.T) {
	t.Parallel()
	runs := runsOf("output_tokens_per_s", 100, 110)
	runs[0].Findings, runs[1].Findings = []string{"saturated"}, []string{"errors", "saturated"}
	runs[1].Nodes = []string{"a", "b"}
	s := compute(t, aggregate.Input{NTotal: 3, Terminal: true, Runs: runs})
	if diff := cmp.Diff([]string{"errors", "saturated"}, s.Findings); diff != "" {
		t.Errorf("findings: %s", diff)
	}
	if s.Nodes != 2 || s.MetricsVersion != "v1" {
		t.Errorf("nodes %d, version %s", s.Nodes, s.MetricsVersion)
	}
	sd := 10 / math.Sqrt2
	if !near(s.Reproducibility, 1-sd/105) {
		t.Errorf("reproducibility %v", value(s.Reproducibility))
	}
	var codes []aggregate.Code
	for _, w := range s.Warnings {
		codes = append(codes, w.Code)
	}
	want := []aggregate.Code{aggregate.WarnNoRequests, aggregate.WarnIncomplete, aggregate.WarnFewRuns, aggregate.WarnProvisional}
	if diff := cmp.Diff(want, codes); diff != "" {
		t.Errorf("warnings: %s", diff)
	}
}

// drawn is a sample of runs with every metric, some of it undefined.
func drawn(rt *rapid.T) []aggregate.Run {
	table := metrics.Table()
	runs := make([]aggregate.Run, rapid.IntRange(0, 8).Draw(rt, "runs"))
	for i := range runs {
		r := aggregate.Run{
			AttemptID: int64(i + 1), Fingerprint: rapid.SampledFrom([]string{"f", "f", "g"}).Draw(rt, "fingerprint"), MetricsVersion: "v1",
			Nodes:    []string{rapid.SampledFrom([]string{"n1", "n2"}).Draw(rt, "node")},
			Findings: rapid.SliceOf(rapid.SampledFrom([]string{"saturated", "errors"})).Draw(rt, "findings"),
			Metrics:  result.Metrics{}, NullReasons: map[string]string{},
		}
		for _, m := range table[:6] {
			if rapid.IntRange(0, 9).Draw(rt, "null") == 0 {
				r.NullReasons[m.Name] = rapid.SampledFrom([]string{"few", "infinite"}).Draw(rt, "reason")
				continue
			}
			v := rapid.OneOf(rapid.Float64Range(-1e3, 1e6), rapid.SampledFrom([]float64{0, math.MaxFloat64, -math.MaxFloat64, 5e-324})).Draw(rt, m.Name)
			r.Metrics[m.Name] = &v
		}
		runs[i] = r
	}
	return runs
}

// TestCompute_OrderDoesNotMatter: to the last bit.
func TestCompute_OrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		runs := drawn(rt)
		in := aggregate.Input{NTotal: 8, Terminal: true, Runs: runs}
		a, err := aggregate.Compute(in)
		if err != nil {
			rt.Fatal(err)
		}
		in.Runs = rapid.Permutation(runs).Draw(rt, "order")
		b, err := aggregate.Compute(in)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(a, b); diff != "" {
			rt.Fatalf("order matters:\n%s", diff)
		}
		if _, err := json.Marshal(a.Metrics); err != nil {
			rt.Fatalf("not JSON: %v", err)
		}
	})
}

// TestCompute_Scaling: in another unit everything is as much larger, and the
// relative interval is the same; the interval holds the mean of its scale.
func TestCompute_Scaling(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(1, 1000), 3, 12).Draw(rt, "values")
		k := rapid.Float64Range(0.01, 100).Draw(rt, "factor")
		scaled := make([]float64, len(values))
		for i, v := range values {
			scaled[i] = v * k
		}
		for _, name := range []string{"output_tokens_per_s", "concurrency_max"} {
			a, _ := aggregate.Compute(aggregate.Input{Runs: runsOf(name, values...)})
			b, _ := aggregate.Compute(aggregate.Input{Runs: runsOf(name, scaled...)})
			x, y := a.Metrics[name], b.Metrics[name]
			for field, pair := range map[string][2]*float64{
				"mean": {x.Mean, y.Mean}, "sd": {x.StdDev, y.StdDev}, "low": {x.CILow, y.CILow}, "high": {x.CIHigh, y.CIHigh},
			} {
				if want := *pair[0] * k; math.Abs(*pair[1]-want) > 1e-6*(math.Abs(want)+*x.Mean*k) {
					rt.Fatalf("%s %s: %v scaled by %v is %v", name, field, *pair[0], k, *pair[1])
				}
			}
			if *x.CILow > *x.CIHigh || *x.Mean < slices.Min(values) || *x.Mean > slices.Max(values) {
				rt.Fatalf("%s: %v in [%v, %v]", name, *x.Mean, *x.CILow, *x.CIHigh)
			}
		}
	})
}
