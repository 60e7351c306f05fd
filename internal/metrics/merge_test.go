package metrics

import (
	"testing"

	"pgregory.net/rapid"

	"sbench/internal/result"
)

// answered is a request that was due at ms and whose one token came ttft ms later.
func answered(ms, ttft int64) result.Request {
	token := (ms + ttft) * 1e6
	return result.Request{
		Phase: result.PhaseMeasure, Outcome: result.OutcomeOK, TIntended: ms * 1e6,
		TTok1: &token, TTokN: &token, TEnd: &token, EventTimes: []int64{token},
	}
}

// TestMergePercentiles_NotTheMeanOfRuns: three runs of which one has a slow tail.
func TestMergePercentiles_NotTheMeanOfRuns(t *testing.T) {
	t.Parallel()
	run := func(fast, slow int, ms int64) Part {
		p := Part{End: 10_000 * 1e6}
		for i := range fast + slow {
			ttft := int64(10)
			if i >= fast {
				ttft = ms
			}
			p.Rows = append(p.Rows, answered(int64(i), ttft))
		}
		return p
	}
	values, _ := MergePercentiles([]Part{run(990, 10, 100), run(985, 15, 400), run(995, 5, 50)})
	if v := values["ttft_p99"]; v == nil || *v != 0.010 {
		t.Errorf("merged p99 %v, want 0.010", v)
	}
	if _, ok := values["output_tokens_per_s"]; ok {
		t.Error("a metric that is no percentile was merged")
	}
	few, reasons := MergePercentiles([]Part{run(100, 0, 0)})
	if few["ttft_p95"] != nil || reasons["ttft_p95"] == "" {
		t.Errorf("p95 of 100 requests: %v, %q", few["ttft_p95"], reasons["ttft_p95"])
	}
	twice, _ := MergePercentiles([]Part{run(100, 0, 0), run(100, 0, 0)})
	if twice["ttft_p95"] == nil {
		t.Error("p95 of 200 requests of two runs is null")
	}
}

// TestMergePercentiles_SplitDoesNotMatter: the same requests in one part or in
// several, in any order, have the same percentiles.
func TestMergePercentiles_SplitDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		ttfts := rapid.SliceOfN(rapid.Int64Range(1, 5000), 20, 400).Draw(rt, "ttft")
		whole := Part{End: 1 << 62}
		parts := make([]Part, rapid.IntRange(1, 4).Draw(rt, "parts"))
		for i, ms := range ttfts {
			r := answered(int64(i), ms)
			if ms%7 == 0 {
				r = result.Request{Phase: result.PhaseMeasure, Outcome: result.OutcomeHTTP5xx, TIntended: int64(i) * 1e6}
			}
			whole.Rows = append(whole.Rows, r)
			k := rapid.IntRange(0, len(parts)-1).Draw(rt, "part")
			parts[k].End = 1 << 62
			parts[k].Rows = append(parts[k].Rows, r)
		}
		a, _ := MergePercentiles([]Part{whole})
		b, _ := MergePercentiles(parts)
		for name := range a {
			if (a[name] == nil) != (b[name] == nil) || a[name] != nil && *a[name] != *b[name] {
				rt.Fatalf("%s: whole %v, split %v", name, a[name], b[name])
			}
		}
	})
}
