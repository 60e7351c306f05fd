// Package conformance_test lists what public clients got wrong, by the thread that
// reports it, and holds each fault to the tests of ours that would fail with it. It
// fails where such a test is gone.
package conformance_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"sbench/tests/conformance/playback"
)

// fault is one of them. Where is a list of tests (package:Test) and of scripted
// answers (case:name), each of which is played with a cut at every byte.
type fault struct {
	ref, what, where string
}

func faults() []fault {
	return []fault{
		// Framing, decoding, shapes.
		{"vllm#38717", "a character cut by two reads", "case:characters of several bytes"},
		{"vllm#50868", "replacement characters", "case:characters of several bytes, case:escapes"},
		{"aiperf#368", "several events in one read", "case:one chunk"},
		{"evalscope#1638", "half an event in a read", "case:chunks that cut events"},
		{"inference-perf", "data without a space, CRLF, no blank line at the end", "case:no space behind the colon, case:CRLF, case:CR, case:no blank line at the end"},
		{"triton_distributed#264", "comment lines", "case:comments"},
		{"aiperf#385", "event: error inside a 200", "case:an error event"},
		{"guidellm#743", "an error object inside a 200", "case:an error object inside the stream, case:an error object, then [DONE]"},
		{"inference-perf#531", "HTML, or half a body, inside a 200", "case:an HTML page, case:HTML in an event stream, case:shorter than its Content-Length"},
		{"aiperf#705", "a raw line break inside JSON", "case:a raw line break in a string, case:data in several lines"},
		{"aiperf#224", "data that is an empty string", "case:empty events"},
		{"production-stack#873", "usage alone, reasoning null", "case:null fields, case:usage null at last"},
		{"guidellm#752", "tool_calls null", "case:null fields"},
		{"aiperf#505", "an error whose body is no JSON", "case:502 with a page"},
		{"inference-perf#420", "a stream that was read before it was parsed", "internal/runner/loadgen:TestConformance_Captures"},
		{"inference-perf#452", "events without text among the times", "case:chat with a role first, internal/runner/loadgen:TestConformance_Cases"},
		{"aiperf#477", "one output token", "internal/metrics:TestCompute_OneToken"},
		{"gpustack#4147", "tokens counted as chunks", "case:several tokens an event, internal/metrics:TestCompute_Chunks"},
		{"vllm#14795", "an answer that did not stream", "case:not streamed, internal/metrics:TestCompute_NotStreamed"},
		// First token, several tokens an event, reasoning.
		{"vllm#3759", "a role taken for the first token", "case:chat with a role first, internal/runner/loadgen:TestRun_Outcomes"},
		{"vllm#5895", "no token, and a success", "case:no text, case:no event"},
		{"vllm#55508", "usage extends the latency", "internal/metrics:TestCompute_EndIsTheLastText"},
		{"sglang#1005", "the first token among the gaps", "internal/metrics:TestCompute_Chunks"},
		{"sglang#26497", "an event without tokens", "internal/metrics:TestCompute_EventWithoutTokens"},
		{"sglang#23949", "reasoning_content alone", "case:reasoning alone, internal/metrics:TestCompute_ReasoningAlone"},
		{"guidellm#835", "reasoning under another name", "case:reasoning alone, case:reasoning, then an answer"},
		{"genai-bench#81", "hidden reasoning taken for the time to the first token", "internal/metrics:TestCompute_ReasoningAlone, internal/sse:TestParser_Shapes"},
		{"endpoints#23", "several tokens in the first event", "internal/metrics:TestCompute_Chunks"},
		{"perf_analyzer#433", "empty first answers", "case:chat with a role first"},
		{"inference-perf#410", "time per token off by the size of a chunk", "internal/metrics:TestCompute_TokensSpread, internal/runner/loadgen:TestProbe_AsksForCountsWhereEventsArePacked"},
		// Tokens and lengths.
		{"inference-perf#577", "text tokenized again", "case:several tokens an event"},
		{"inference-perf#490", "a prompt one token longer than planned", "internal/workload:TestPrompter_ExactLength, internal/runner/loadgen:TestProbe_FindsWordsOfOneToken"},
		{"inference-perf#383", "the chat template's tokens", "internal/runner/loadgen:TestProbe_FindsWordsOfOneToken, internal/workload:TestPrompter_ExactLength"},
		{"vllm#24591", "prompts of one token", "internal/workload:TestPrompter_TooShort"},
		{"aiperf#339", "another body than meant", "internal/runner/loadgen:TestRenderer_Body, internal/workload:TestPlan_GoldenHashes"},
		{"vllm#13333", "answers shorter than asked for", "case:another length, internal/runner/audit:TestRun_Findings"},
		{"guidellm#979", "most requests fail, and percentiles look good", "internal/metrics:TestCompute_FailuresAreInfinite, internal/runner/audit:TestRun_Findings"},
		{"pegainfer#548", "a refused request is one token", "case:finish reason abort, case:no text"},
		{"sglang client", "tokens assumed where usage is missing", "case:no usage, internal/metrics:TestCompute_TokensSpread"},
		{"flexible-inference-bench#66", "another tokenizer than the server's", "internal/runner/audit:TestRun_HarnessFaults"},
		// Schedule, and work shared among processes.
		{"vllm#54101", "the clock starts behind a semaphore", "internal/runner/loadgen:TestRun_LimitHoldsBack, internal/runner/loadgen:TestRun_StallShowsInEveryLatency"},
		{"vllm#28512", "parallel clients send one stream", "internal/runner/loadgen:TestRun_WorkersOfferOnePlan, internal/workload:TestPrompter_Prefixes"},
		{"inference-perf timers", "a constant rate that is not", "internal/workload:TestArrivals_ConstantIsExact, internal/workload:TestArrivals_Distributions"},
		{"guidellm strategies", "every gap once for each worker", "internal/runner/loadgen:TestRun_WorkersOfferOnePlan, internal/workload:TestArrivals_Distributions"},
		{"inference-perf#319", "a concurrency rounded up for each worker", "internal/runner/loadgen:TestRun_WorkersShareTheSlots"},
		{"aiperf, Rust parity", "limits for each worker", "internal/runner/loadgen:TestRun_WorkersShareTheSlots, internal/runner/loadgen:TestRun_LimitHoldsBack"},
		{"inference-perf#509", "every worker sends one prompt", "internal/workload:TestPrompter_Prefixes"},
		{"inference-perf#459", "sessions that leak between stages", "internal/workload:TestPlan_LoadPointsShareNothing"},
		{"guidellm#745", "a trace out of order", "internal/workload:TestPlan_TraceInOrder"},
		{"aiperf#289", "turns twice, or in another order", "internal/runner/loadgen:TestRun_Sessions, internal/runner/loadgen:TestRun_EveryRequestIsAccountedFor"},
		{"llm-d-benchmark#261", "the client's own load in the latency", "internal/runner/audit:TestRun_HarnessFaults"},
		{"tcpreplay#630", "a rate that drifts", "internal/runner/loadgen:TestRun_SendsAtAbsoluteTimes, internal/workload:TestArrivals_ConstantIsExact"},
		{"inference-perf#112", "stages miscounted", "internal/workload:TestPlan_LoadPointsShareNothing, internal/workload:TestArrivals_Stages"},
		// Windows, aggregation, files.
		{"guidellm#1078", "warm-up inside the window", "internal/metrics:TestCompute_Windows"},
		{"guidellm percentiles", "a rank off by one", "internal/stats:TestPercentile_Vectors, internal/metrics:TestColumn_Percentiles"},
		{"guidellm#515", "equal values break the report", "internal/metrics:TestCompute_DegenerateDocuments"},
		{"memtier#271", "NaN in a document", "internal/metrics:TestCompute_DegenerateDocuments"},
		{"wrk2#138", "a window of no length", "internal/metrics:TestCompute_Nothing"},
		{"InferenceX#2052", "a metric under another name", "internal/metrics:TestTable_Verify"},
		{"InferenceX process_result", "the inverse of a percentile", "internal/metrics:TestCompute_RatesAreInvertedFirst"},
		{"inference-sim#1115", "timed-out requests as throughput", "internal/metrics:TestCompute_TimeoutsAddNoTokensOfTheirOwn"},
		{"sample-apj-sup-sa#181", "partial answers dropped, prompts repeated", "internal/runner/loadgen:TestRun_TimedOutStreamKeepsItsTimes, internal/workload:TestPrompter_Prefixes"},
		{"endpoints#409", "numerator and denominator of two windows", "internal/metrics:TestCompute_Windows"},
		{"srt-slurm#211", "a job runs another configuration than was submitted", "internal/batch:TestDecode_Refuses, internal/runner:TestRun_BadBatch"},
		{"srt-slurm#58", "null read as a number", "internal/resultfile:TestResult_RoundTrip"},
		{"tpu-inference#2434", "a failed server's 0 ms", "internal/metrics:TestCompute_DegenerateDocuments"},
		// Connections and the client's limits.
		{"guidellm#487", "a hundred connections for each worker", "internal/runner/loadgen:TestRun_ServerClosesBehindEachAnswer"},
		{"vllm#39963", "a small buffer and long prompts", "internal/runner/loadgen:TestRun_LargePrompts, internal/sse:TestLimits"},
		{"endpoints#386", "no ports left", "internal/runner/loadgen:TestRun_RefusesWhatTheMachineCannotCarry, internal/runner/audit:TestRun_HarnessFaults"},
		{"vllm-omni#1374", "a connection that had been closed", "internal/runner/loadgen:TestRun_StaleConnection"},
		{"srt-slurm#260", "a handshake in every latency", "internal/runner/loadgen:TestRun_StaleConnection"},
		{"inference-perf#247", "answers not read to their end", "internal/runner/loadgen:TestConformance_EveryEnd"},
		{"the environment", "a proxy between client and server", "internal/runner/loadgen:TestRun_IgnoresProxies"},
		// Readiness, warm-up, caches.
		{"sglang#33740", "ready before it can serve", "internal/runner/engine:TestWaitReady_TokenNotPort"},
		{"vllm#52884", "the second run is faster", "internal/workload:TestPrompter_Prefixes, internal/runner/audit:TestRun_HarnessFaults"},
		{"srt-slurm#243", "somebody else's port", "internal/runner/engine:TestWaitReady_ForeignPort"},
		{"llama.cpp#7284", "hangs while it loads", "internal/runner/engine:TestWaitReady_HangingAnswer, internal/runner/engine:TestWaitReady_NotInTimeSaysWhatItMet"},
		// Clocks, retries, accounts of failures.
		{"sui#4527", "a retry starts the clock again", "internal/runner/loadgen:TestRun_ResentKeepsItsFirstTime"},
		{"tpcc#111", "warm-up counted", "internal/metrics:TestCompute_Windows"},
		{"aiperf#546", "parse errors are successes", "case:not JSON, case:an event that is not JSON"},
		{"llm-d-benchmark#698", "a result of failures alone", "internal/metrics:TestCompute_DegenerateDocuments"},
		{"nanotune#163", "null becomes 0", "internal/metrics:TestCompute_Nothing, internal/resultfile:TestResult_RoundTrip"},
		{"redisbench-admin#444", "too few samples", "internal/metrics:TestCompute_FirstTokenOfAFailureCounts, internal/metrics:TestColumn_Percentiles"},
	}
}

// testsOf are the names of a package's tests.
func testsOf(t *testing.T, folder string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}

func TestFaults_HaveTests(t *testing.T) {
	t.Parallel()
	cases, packages, seen := map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}
	for _, c := range playback.Cases() {
		cases[c.Name] = true
	}
	for _, f := range faults() {
		if seen[f.ref] {
			t.Errorf("%s is listed twice", f.ref)
		}
		seen[f.ref] = true
		for _, where := range splitWhere(f.where) {
			place, name, ok := strings.Cut(where, ":")
			if !ok {
				t.Fatalf("%s: %q", f.ref, where)
			}
			if place == "case" {
				if !cases[name] {
					t.Errorf("%s (%s): no scripted answer %q", f.ref, f.what, name)
				}
				continue
			}
			if packages[place] == nil {
				packages[place] = testsOf(t, place)
			}
			if !packages[place][name] {
				t.Errorf("%s (%s): no test %s in %s", f.ref, f.what, name, place)
			}
		}
	}
}

// splitWhere cuts before each "case:" and "internal/": names of cases have commas.
func splitWhere(list string) []string {
	var all []string
	for _, part := range strings.Split(list, ", ") {
		if len(all) > 0 && !strings.HasPrefix(part, "case:") && !strings.HasPrefix(part, "internal/") {
			all[len(all)-1] += ", " + part
			continue
		}
		all = append(all, part)
	}
	return all
}
