// Package result holds what an attempt leaves behind: request rows, telemetry,
// fidelity checks, metrics, the result row and the sealed manifest. Null is a
// nil pointer and never 0. The package is pure.
package result

// MetricsVersion is the version of the definitions in METRICS.md that computed
// a result; it is stored with every result.
const MetricsVersion = "v1"

// Outcome is what became of one offered request; exactly one each.
type Outcome string

// The outcome classes.
const (
	OutcomeOK                Outcome = "ok"
	OutcomeLengthMismatch    Outcome = "ok_length_mismatch"
	OutcomeHTTP4xx           Outcome = "http_4xx"
	OutcomeHTTP429           Outcome = "http_429"
	OutcomeHTTP5xx           Outcome = "http_5xx"
	OutcomeStreamError       Outcome = "stream_error"
	OutcomeTruncatedStream   Outcome = "truncated_stream"
	OutcomeBadPayload        Outcome = "bad_payload"
	OutcomeNoOutput          Outcome = "no_output"
	OutcomeConnectError      Outcome = "connect_error"
	OutcomeClientLimit       Outcome = "client_limit"
	OutcomeTimeoutConnect    Outcome = "timeout_connect"
	OutcomeTimeoutFirstToken Outcome = "timeout_first_token"
	OutcomeTimeoutTotal      Outcome = "timeout_total"
	OutcomeCancelledByPlan   Outcome = "cancelled_by_plan"
	OutcomeCutOff            Outcome = "cut_off"
	OutcomeNotSent           Outcome = "not_sent"
)

// Phase is the part of the plan that a request belongs to.
type Phase string

// The phases. Warm-up rows are never part of a metric.
const (
	PhaseWarmup  Phase = "warmup"
	PhaseRamp    Phase = "ramp"
	PhaseMeasure Phase = "measure"
	PhaseTail    Phase = "tail" // arrivals that go on during the drain, to keep the load up
)

// Request is one offered request. Times are int64 nanoseconds on the attempt's
// monotonic clock (METRICS.md); nil where the event did not happen.
type Request struct {
	Index      int32   `parquet:"index"`
	Window     int32   `parquet:"window"` // load point, from 0
	Phase      Phase   `parquet:"phase,dict"`
	Outcome    Outcome `parquet:"outcome,dict"`
	Detail     string  `parquet:"detail,zstd"` // why it failed, or what was odd about it; one line
	Session    int32   `parquet:"session"`
	Turn       int32   `parquet:"turn"`
	Group      int32   `parquet:"prefix_group"` // -1 for none
	ReusedConn bool    `parquet:"reused_conn"`
	Resent     bool    `parquet:"resent"` // written again: the idle connection it was first written on had been closed
	Held       bool    `parquet:"held"`   // kept back by the limit on requests in flight

	TIntended int64  `parquet:"t_intended"`
	TDispatch *int64 `parquet:"t_dispatch,optional"`
	TConn     *int64 `parquet:"t_conn,optional"`
	TWritten  *int64 `parquet:"t_written,optional"`
	THeaders  *int64 `parquet:"t_headers,optional"`
	TByte1    *int64 `parquet:"t_byte1,optional"`
	TChunk1   *int64 `parquet:"t_chunk1,optional"`
	TTok1     *int64 `parquet:"t_tok1,optional"`
	TContent1 *int64 `parquet:"t_content1,optional"`
	TTokN     *int64 `parquet:"t_tokn,optional"`
	TUsage    *int64 `parquet:"t_usage,optional"`
	TDone     *int64 `parquet:"t_done,optional"`
	TEnd      *int64 `parquet:"t_end,optional"`

	HTTPStatus      int32  `parquet:"http_status"` // 0 where no status line came
	InputPlanned    int32  `parquet:"input_tokens_planned"`
	OutputPlanned   int32  `parquet:"output_tokens_planned"`
	InputTokens     *int32 `parquet:"input_tokens,optional"`       // the server's usage
	OutputTokens    *int32 `parquet:"output_tokens,optional"`      // the server's usage, else its tokenizer
	TokensFirst     *int32 `parquet:"tokens_first_event,optional"` // n₁
	CachedTokens    *int32 `parquet:"cached_tokens,optional"`
	ReasoningTokens *int32 `parquet:"reasoning_tokens,optional"`
	TokenSource     string `parquet:"token_source,dict"` // usage, tokenizer, none
	FinishReason    string `parquet:"finish_reason,dict"`
	Bytes           int64  `parquet:"bytes"`

	// Events, one entry per event with text; empty where retention dropped them.
	EventTimes  []int64 `parquet:"event_times,list" parquet-element:",delta"`
	EventBytes  []int32 `parquet:"event_bytes,list" parquet-element:",delta"`
	EventTokens []int32 `parquet:"event_tokens,list" parquet-element:",delta"` // empty where unknown
}

// Verdict of a check.
type Verdict string

// The verdicts.
const (
	VerdictPass          Verdict = "pass"
	VerdictFail          Verdict = "fail"
	VerdictUnknown       Verdict = "unknown"
	VerdictNotApplicable Verdict = "not_applicable"
)

// CheckKind says what a failed check means.
type CheckKind string

// The kinds of check.
const (
	CheckEnvironment CheckKind = "environment" // pinned against realized: refusal
	CheckHarness     CheckKind = "harness"     // the attempt is invalid
	CheckFinding     CheckKind = "finding"     // about the engine: valid and labelled
)

// Check is one fidelity check, with the sentence a person reads.
type Check struct {
	Name      string    `json:"name"`
	Kind      CheckKind `json:"kind"`
	Verdict   Verdict   `json:"verdict"`
	Value     *float64  `json:"value"`
	Threshold *float64  `json:"threshold"`
	Unit      string    `json:"unit"`
	Reason    string    `json:"reason"`
}
