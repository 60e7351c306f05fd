package metrics

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sbench/internal/result"
	"sbench/internal/stats"
)

const second = int64(1_000_000_000)

func at(seconds float64) *int64 {
	t := int64(math.Round(seconds * 1e9))
	return &t
}

func count(n int32) *int32 { return &n }

// streamed is a request due at t whose events come at those times, a token each.
func streamed(t float64, events ...float64) result.Request {
	r := result.Request{
		Phase: result.PhaseMeasure, Outcome: result.OutcomeOK, TIntended: *at(t), TDispatch: at(t), TWritten: at(t),
		InputTokens: count(10), OutputTokens: count(int32(len(events))), TokensFirst: count(1), TokenSource: "usage",
	}
	for _, e := range events {
		r.EventTimes = append(r.EventTimes, *at(e))
		r.EventTokens = append(r.EventTokens, 1)
		r.EventBytes = append(r.EventBytes, 100)
	}
	if n := len(events); n > 0 {
		r.TTok1, r.TContent1, r.TTokN, r.TEnd = at(events[0]), at(events[0]), at(events[n-1]), at(events[n-1])
	}
	return r
}

func failed(t float64, o result.Outcome) result.Request {
	return result.Request{Phase: result.PhaseMeasure, Outcome: o, TIntended: *at(t), TDispatch: at(t), TWritten: at(t), TEnd: at(t + 1)}
}

func window(start, end float64) result.Window { return result.Window{Start: *at(start), End: *at(end)} }

func value(t *testing.T, w result.Window, name string) float64 {
	t.Helper()
	v, known := w.Metrics[name]
	if !known {
		t.Fatalf("no metric %s", name)
	}
	if v == nil {
		t.Fatalf("%s is null: %s", name, w.NullReasons[name])
	}
	return *v
}

func same(t *testing.T, w result.Window, name string, want float64) {
	t.Helper()
	if got := value(t, w, name); math.Abs(got-want) > 1e-9*math.Max(1, math.Abs(want)) {
		t.Errorf("%s = %.12g, want %.12g", name, got, want)
	}
}

func null(t *testing.T, w result.Window, name, reason string) {
	t.Helper()
	if v := w.Metrics[name]; v != nil {
		t.Errorf("%s = %g, want null", name, *v)
	}
	if !strings.Contains(w.NullReasons[name], reason) {
		t.Errorf("%s is null because %q, want %q", name, w.NullReasons[name], reason)
	}
}

// Several tokens in an event (tests/vectors/stats, "chunks"): the first event's
// tokens leave tpot, gaps are normalised and weighted, and no gap holds the ttft.
func TestCompute_Chunks(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../tests/vectors/stats/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Chunks struct {
			T            []float64
			Tok          []int32
			TTFT         float64
			E2E          float64
			MeanChunkGap float64   `json:"mean_chunk_gap"`
			TPOT         float64   `json:"tpot"`
			ITL          []float64 `json:"per_token_itl"`
		}
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	r := streamed(0, v.Chunks.T...)
	r.EventTokens, r.OutputTokens = v.Chunks.Tok, count(6)
	w := Compute([]result.Request{r}, window(0, 1), nil)
	same(t, w, "ttft_mean", v.Chunks.TTFT)
	same(t, w, "e2e_mean", v.Chunks.E2E)
	same(t, w, "tpot_mean", v.Chunks.TPOT)
	same(t, w, "chunk_gap_mean", v.Chunks.MeanChunkGap)
	same(t, w, "itl_mean", stats.Mean(v.Chunks.ITL))
	same(t, w, "tokens_per_s_user_mean", 1/v.Chunks.TPOT)
	same(t, w, "output_tokens_per_s", 6)

	// Three tokens in the first event, of six in all: two gaps of 0.1 s carry three.
	r.EventTokens, r.TokensFirst = []int32{3, 1, 2}, count(3)
	same(t, Compute([]result.Request{r}, window(0, 1), nil), "tpot_mean", 0.2/3)
}

// Failed requests are infinite (vector "failures_as_inf"): dropping them would
// give 98.
func TestCompute_FailuresAreInfinite(t *testing.T) {
	t.Parallel()
	var rows []result.Request
	for copies := range 10 {
		for i := 1; i <= 98; i++ {
			start := float64(copies) / 100
			rows = append(rows, streamed(start, start+float64(i)))
		}
		rows = append(rows, failed(0.5, result.OutcomeHTTP5xx), failed(0.5, result.OutcomeConnectError))
	}
	w := Compute(rows, window(0, 1), SLO{"e2e": 95})
	same(t, w, "e2e_p95", 95)
	null(t, w, "e2e_p99", "infinite: 20 of 1000 requests failed")
	null(t, w, "e2e_mean", "infinite")
	same(t, w, "error_rate", 0.02)
	same(t, w, "goodput_ratio", 0.95)
	same(t, w, "goodput", 950)
	same(t, w, "requests_http_5xx", 10)
	same(t, w, "requests_offered", 1000)
}

// A failure behind the first token has a ttft, but no e2e.
func TestCompute_FirstTokenOfAFailureCounts(t *testing.T) {
	t.Parallel()
	rows := make([]result.Request, 0, 20)
	for range 19 {
		rows = append(rows, streamed(0, 0.1, 0.2))
	}
	broken := streamed(0, 0.4, 0.5)
	broken.Outcome, broken.OutputTokens, broken.TokensFirst = result.OutcomeTruncatedStream, nil, nil
	w := Compute(append(rows, broken), window(0, 1), SLO{"ttft": 1, "tpot": 1})
	same(t, w, "ttft_mean", (19*0.1+0.4)/20)
	same(t, w, "ttft_p50", 0.1)
	null(t, w, "e2e_mean", "infinite: 1 of 20")
	same(t, w, "tpot_mean", 0.1)
	same(t, w, "goodput_ratio", 0.95)
	null(t, w, "ttft_p90", "20 samples; this percentile needs 100")
}

// What was cut off is at least as long as it lasted: a percentile it might change
// is a bound.
func TestCompute_CutOffIsCensored(t *testing.T) {
	t.Parallel()
	var rows []result.Request
	for i := range 200 {
		rows = append(rows, streamed(0, 0.001*float64(i+1)))
	}
	for range 20 {
		r := failed(0, result.OutcomeCutOff)
		r.TEnd = at(5)
		rows = append(rows, r)
	}
	w := Compute(rows, window(0, 1), nil)
	same(t, w, "e2e_p50", 0.110) // the 110th of 220
	same(t, w, "ttft_p50", 0.110)
	null(t, w, "e2e_p95", "> 5: 20 of 220 requests were cut off")
	// Cut off early, they may lie anywhere above: the median becomes a bound too.
	for i := range rows {
		if rows[i].Outcome == result.OutcomeCutOff {
			rows[i].TEnd = at(0.05)
		}
	}
	null(t, Compute(rows, window(0, 1), nil), "e2e_p50", "> ")
}

// Latencies belong to the requests due in the window, tokens to the time of their
// events, and warm-up to neither.
func TestCompute_Windows(t *testing.T) {
	t.Parallel()
	early := streamed(0.5, 0.9, 1.1, 1.5) // due before, two events inside
	early.Phase = result.PhaseRamp
	inside := streamed(1.2, 1.4, 2.4) // due inside, one event behind
	late := streamed(2.1, 2.2)        // due behind
	late.Phase = result.PhaseTail
	warm := streamed(0.1, 1.3)
	warm.Phase = result.PhaseWarmup
	w := Compute([]result.Request{early, inside, late, warm}, window(1, 2), nil)
	same(t, w, "output_tokens_per_s", 3)
	same(t, w, "requests_offered", 1)
	same(t, w, "ttft_mean", 0.2)
	same(t, w, "achieved_rate", 1) // the early one ended inside
	same(t, w, "concurrency_mean", 0.5+0.8)
	same(t, w, "concurrency_max", 2)
	same(t, w, "input_tokens_per_s", 10)
}

// Tokens without a count for each event are spread evenly over the events.
func TestCompute_TokensSpread(t *testing.T) {
	t.Parallel()
	r := streamed(0, 0.5, 0.9, 1.5, 1.9)
	r.EventTokens, r.TokensFirst, r.OutputTokens = nil, nil, count(10)
	w := Compute([]result.Request{r}, window(0, 1), nil)
	same(t, w, "output_tokens_per_s", 5)
	null(t, w, "itl_mean", "the tokens of each event are unknown")
	null(t, w, "tpot_mean", "counts are unknown")
	r.OutputTokens = nil
	null(t, Compute([]result.Request{r}, window(0, 1), nil), "output_tokens_per_s", "did not say")
}

// An answer in one piece has no first token; it is no failure.
func TestCompute_NotStreamed(t *testing.T) {
	t.Parallel()
	r := streamed(0)
	r.TTokN, r.TEnd, r.OutputTokens = at(0.5), at(0.5), count(8)
	w := Compute([]result.Request{r}, window(0, 1), nil)
	null(t, w, "ttft_mean", "did not come as a stream")
	same(t, w, "e2e_mean", 0.5)
	same(t, w, "output_tokens_per_s", 8)
}

// Nothing, and windows without length, are null and never 0 or a panic.
func TestCompute_Nothing(t *testing.T) {
	t.Parallel()
	w := Compute(nil, window(0, 1), SLO{"ttft": 1})
	null(t, w, "ttft_p50", "no requests")
	null(t, w, "error_rate", "no requests")
	null(t, w, "goodput_ratio", "no requests")
	same(t, w, "requests_offered", 0)
	null(t, Compute(nil, window(1, 1), nil), "requests_offered", "no length")
	for _, bad := range []SLO{{"chunk_gap_p99": 1}, {"output_tokens_per_s": 1}, {"ttft_p99": 0}, {"ttft": math.NaN()}} {
		if bad.Check() == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}

// Little's law holds where nothing crosses the window's ends.
func TestCompute_Little(t *testing.T) {
	t.Parallel()
	var rows []result.Request
	for i := range 50 {
		start := float64(i) * 0.1
		rows = append(rows, streamed(start, start+0.05, start+0.08))
	}
	w := Compute(rows, window(0, 10), nil)
	same(t, w, "little_ratio", 1)
	same(t, w, "concurrency_mean", 50*0.08/10)
	rows[3].Outcome = result.OutcomeCutOff
	null(t, Compute(rows, window(0, 10), nil), "little_ratio", "still in the system")
}

// Whatever the rows, each metric is a finite number or null with a reason, and
// the order of the rows does not matter.
func TestCompute_AnyRows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(rapid.Custom(anyRow), 0, 40).Draw(t, "rows")
		w := Compute(rows, window(1, 3), SLO{"ttft_p99": 0.5, "tpot": 0.1})
		for _, m := range WindowTable() {
			v := w.Metrics[m.Name]
			switch {
			case v == nil && w.NullReasons[m.Name] == "":
				t.Fatalf("%s is null without a reason", m.Name)
			case v != nil && (math.IsNaN(*v) || math.IsInf(*v, 0)):
				t.Fatalf("%s is %v", m.Name, *v)
			case v != nil && *v < 0:
				t.Fatalf("%s is negative: %v", m.Name, *v)
			}
		}
		if len(w.Metrics) != len(WindowTable()) {
			t.Fatalf("%d metrics, the table has %d", len(w.Metrics), len(WindowTable()))
		}
		slices.Reverse(rows)
		again := Compute(rows, window(1, 3), SLO{"ttft_p99": 0.5, "tpot": 0.1})
		for name, v := range w.Metrics {
			if (v == nil) != (again.Metrics[name] == nil) || (v != nil && math.Abs(*v-*again.Metrics[name]) > 1e-9*math.Max(1, *v)) {
				t.Fatalf("%s depends on the order of the rows", name)
			}
		}
	})
}

// anyRow is a row that the load generator could have written.
func anyRow(t *rapid.T) result.Request {
	due := rapid.Int64Range(0, 4*second).Draw(t, "due")
	r := result.Request{
		Phase:     rapid.SampledFrom([]result.Phase{result.PhaseWarmup, result.PhaseRamp, result.PhaseMeasure, result.PhaseTail}).Draw(t, "phase"),
		Outcome:   rapid.SampledFrom(Outcomes()).Draw(t, "outcome"),
		TIntended: due,
	}
	now := due
	later := func(name string) *int64 {
		if !rapid.Bool().Draw(t, name+" came") {
			return nil
		}
		now += rapid.Int64Range(0, second).Draw(t, name)
		v := now
		return &v
	}
	r.TDispatch = later("dispatch")
	r.TWritten = later("written")
	for range rapid.IntRange(0, 5).Draw(t, "events") {
		now += rapid.Int64Range(0, second/4).Draw(t, "gap")
		r.EventTimes = append(r.EventTimes, now)
		r.EventBytes = append(r.EventBytes, 1)
	}
	if n := len(r.EventTimes); n > 0 {
		r.TTok1, r.TTokN = &r.EventTimes[0], &r.EventTimes[n-1]
		if rapid.Bool().Draw(t, "content") {
			r.TContent1 = r.TTok1
		}
		if rapid.Bool().Draw(t, "counted") {
			r.OutputTokens, r.TokensFirst = count(int32(n)), count(1)
			for range n {
				r.EventTokens = append(r.EventTokens, int32(rapid.IntRange(0, 3).Draw(t, "tokens")))
			}
		}
	}
	if rapid.Bool().Draw(t, "prompt counted") {
		r.InputTokens, r.CachedTokens = count(20), count(5)
	}
	r.TEnd = later("end")
	return r
}

// The percentile of a column is that of the sorted samples, whatever the weights.
func TestColumn_Percentiles(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var col column
		var flat []float64
		heaviest := rapid.SampledFrom([]int{1, 9}).Draw(t, "heaviest")
		for range rapid.IntRange(1, 60).Draw(t, "n") {
			v, weight := rapid.Float64Range(0, 10).Draw(t, "v"), rapid.IntRange(1, heaviest).Draw(t, "weight")
			col.values = append(col.values, weighted{v, weight})
			for range weight {
				flat = append(flat, v)
			}
		}
		slices.Sort(flat)
		o := col.sorted(true)
		for _, s := range []Statistic{P50, P90, P95, P99} {
			num, den := s.quantile()
			if got, want := o.quantile(s), stats.NearestRank(flat, num, den); got != want {
				t.Fatalf("%s: %g, want %g", s, got, want)
			}
			if got, want := o.quantile(s+"_r7"), stats.R7(flat, num, den); math.Abs(got-want) > 1e-12 {
				t.Fatalf("%s r7: %g, want %g", s, got, want)
			}
		}
	})
}

func TestHistogram_HoldsTheSamples(t *testing.T) {
	t.Parallel()
	var rows []result.Request
	for i := range 100 {
		rows = append(rows, streamed(0, 0.01*float64(i+1), 0.01*float64(i+1)+0.5))
	}
	w := Compute(rows, window(0, 1), nil)
	h, err := DecodeHistogram(w.Histograms["ttft"])
	if err != nil {
		t.Fatal(err)
	}
	if h.TotalCount() != 100 || math.Abs(float64(h.ValueAtQuantile(50))-0.5e9) > 0.5e6 {
		t.Errorf("%d values, median %d ns", h.TotalCount(), h.ValueAtQuantile(50))
	}
	if _, err := DecodeHistogram([]byte("no")); err == nil {
		t.Error("a damaged histogram is accepted")
	}
}

// The table's names are unique, fit for JSON and SQL, and documented.
func TestTable_Verify(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, m := range Table() {
		if seen[m.Name] || m.Name == "" || strings.ToLower(m.Name) != m.Name || strings.ContainsAny(m.Name, " .-:") {
			t.Errorf("name %q", m.Name)
		}
		seen[m.Name] = true
		if m.Unit == "" || m.Doc == "" || m.Better == "" {
			t.Errorf("%+v is incomplete", m)
		}
		if found, ok := Find(m.Name); !ok || found != m {
			t.Errorf("Find(%s) = %+v, %v", m.Name, found, ok)
		}
	}
}

var update = flag.Bool("update", false, "write the table in docs/metrics.md")

// The manual has the table's rows, in their order. Percentiles share a row.
func TestDocs_Verify(t *testing.T) {
	t.Parallel()
	const page, begin, end = "../../docs/metrics.md", "do not edit -->\n", "<!-- end of table -->"
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(b), begin)
	table, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatal("docs/metrics.md has no place for the table")
	}
	var want strings.Builder
	want.WriteString("| metric | unit | better | meaning |\n|---|---|---|---|\n")
	for _, m := range Table() {
		name, doc := m.Name, m.Doc
		if m.Level == LevelRequest {
			if m.Stat != P50 {
				continue
			}
			name = m.Base + "_{p50, p90, p95, p99, mean}"
			_, doc, _ = strings.Cut(m.Doc, " of ")
		}
		fmt.Fprintf(&want, "| `%s` | %s | %s | %s |\n", name, m.Unit, m.Better, doc)
	}
	if table == want.String() {
		return
	}
	if !*update {
		t.Fatalf("docs/metrics.md is not the table: go test ./internal/metrics -run Verify -update")
	}
	if err := os.WriteFile(page, []byte(head+begin+want.String()+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}
