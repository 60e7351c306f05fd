package metrics

import (
	"encoding/json"
	"strings"
	"testing"

	"sbench/internal/result"
)

// What other clients compute wrongly. The list of all such faults, with the tests
// that hold us to them, is in tests/conformance.

// One output token has no time per token, and is no failure.
func TestCompute_OneToken(t *testing.T) {
	t.Parallel()
	w := Compute([]result.Request{streamed(0, 0.1)}, window(0, 1), SLO{"tpot": 0.001, "ttft": 1})
	same(t, w, "ttft_mean", 0.1)
	same(t, w, "error_rate", 0)
	same(t, w, "goodput_ratio", 1)
	null(t, w, "tpot_mean", "no request had more tokens")
	null(t, w, "tokens_per_s_user_mean", "no request had more tokens")
}

// An event without a token has no weight among the inter-token latencies, and
// divides nothing by 0.
func TestCompute_EventWithoutTokens(t *testing.T) {
	t.Parallel()
	r := streamed(0, 0.1, 0.2, 0.4)
	r.EventTokens, r.OutputTokens = []int32{1, 0, 2}, count(3)
	w := Compute([]result.Request{r}, window(0, 1), nil)
	same(t, w, "chunk_gap_mean", 0.15)
	same(t, w, "itl_mean", 0.1) // 0.2 s for two tokens, and nothing for none
	same(t, w, "tpot_mean", 0.15)
	same(t, w, "output_tokens_per_s", 3)
}

// Usage, [DONE] and a slow close do not extend a request.
func TestCompute_EndIsTheLastText(t *testing.T) {
	t.Parallel()
	r := streamed(0, 0.1, 0.2)
	r.TUsage, r.TDone, r.TEnd = at(0.5), at(0.6), at(0.9)
	w := Compute([]result.Request{r}, window(0, 1), nil)
	same(t, w, "e2e_mean", 0.2)
	same(t, w, "concurrency_mean", 0.2)
	same(t, w, "chunk_gap_mean", 0.1)
}

// Only reasoning was produced: it counts for the first token, and there is no
// visible output, which is null and not 0.
func TestCompute_ReasoningAlone(t *testing.T) {
	t.Parallel()
	r := streamed(0, 0.1, 0.2)
	r.TContent1 = nil
	w := Compute([]result.Request{r}, window(0, 1), nil)
	same(t, w, "ttft_mean", 0.1)
	null(t, w, "ttfo_mean", "nothing but reasoning")
}

// Percentiles of the rate per user are taken of each request's rate: the 99th is
// a fast one, not the inverse of the slowest.
func TestCompute_RatesAreInvertedFirst(t *testing.T) {
	t.Parallel()
	var rows []result.Request
	for i := range 1000 {
		gap := 0.01
		if i >= 900 {
			gap = 0.1 // a tenth is slow
		}
		rows = append(rows, streamed(0, 0.1, 0.1+gap))
	}
	w := Compute(rows, window(0, 1), nil)
	same(t, w, "tpot_p95", 0.1)
	same(t, w, "tokens_per_s_user_p50", 100)
	same(t, w, "tokens_per_s_user_p95", 100)
}

// A request that ran into its limit adds the tokens that it had in the window,
// and is neither completed well nor an answer of the length asked for.
func TestCompute_TimeoutsAddNoTokensOfTheirOwn(t *testing.T) {
	t.Parallel()
	stuck := streamed(0, 0.1)
	stuck.Outcome, stuck.OutputTokens, stuck.TEnd = result.OutcomeTimeoutTotal, nil, at(0.9)
	w := Compute([]result.Request{stuck, streamed(0, 0.1, 0.2)}, window(0, 1), nil)
	same(t, w, "output_tokens_per_s", 3)
	same(t, w, "output_tokens_mean", 2)
	same(t, w, "requests_per_s", 1)
	same(t, w, "requests_timeout_total", 1)
	same(t, w, "error_rate", 0.5)
	null(t, w, "e2e_mean", "infinite: 1 of 2")
}

// All requests equal, all failed, or none: a document without NaN or infinity,
// whose nulls have reasons.
func TestCompute_DegenerateDocuments(t *testing.T) {
	t.Parallel()
	equal := make([]result.Request, 0, 300)
	broken := make([]result.Request, 0, 300)
	for range 300 {
		equal = append(equal, streamed(0.5, 0.6, 0.7))
		broken = append(broken, failed(0.5, result.OutcomeConnectError))
	}
	for name, rows := range map[string][]result.Request{"equal": equal, "failed": broken, "none": nil} {
		w := Compute(rows, window(0, 1), SLO{"ttft": 1})
		text, err := json.Marshal(w.Metrics)
		if err != nil || strings.Contains(string(text), "NaN") || strings.Contains(string(text), "Inf") {
			t.Errorf("%s: %v, %s", name, err, text)
		}
		for _, m := range WindowTable() {
			if w.Metrics[m.Name] == nil && w.NullReasons[m.Name] == "" {
				t.Errorf("%s: %s is null without a reason", name, m.Name)
			}
		}
	}
	w := Compute(equal, window(0, 1), nil)
	same(t, w, "ttft_p95", 0.1)
	same(t, w, "ttft_p95_r7", 0.1)
	w = Compute(broken, window(0, 1), nil)
	null(t, w, "ttft_p50", "infinite")
	same(t, w, "output_tokens_per_s", 0)
	null(t, w, "output_tokens_mean", "did not say")
}
