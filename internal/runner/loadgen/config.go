package loadgen

import (
	"context"
	"crypto/tls"
	"time"

	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/workload"
)

// Target is the server under load, its name not yet resolved.
type Target struct {
	Network string // tcp, unix, tls
	Address string // host:port, or the path of a socket
	Host    string // the Host header
	Base    string // path prefix, "" or "/prefix"
	TLS     *tls.Config
	// Authorization is the value of that header; "" for none. It is a secret.
	Authorization string
}

// Config is one load run.
type Config struct {
	Target  Target
	Model   string // the name that the requests carry; "" leaves it out
	Request setting.Request
	Plan    *workload.Plan
	Served  Served // from Probe; the zero value makes Run probe by itself
	// MaxInFlight is the safety limit on requests in flight; 0 takes the plan's,
	// or DefaultMaxInFlight. Reaching it marks the recording.
	MaxInFlight int
	// StopWhenSaturated ends a ladder after the first load point at which the
	// engine did not keep up.
	StopWhenSaturated bool
	Client            Client
	Progress          func(Progress) // called about twice a second; nil for none
}

// Client says how the load generator uses its machine. The zero value is right
// for a machine that the engine shares.
type Client struct {
	// Readers is the number of threads that read answers; 0 means 1.
	Readers int
	// Spin is how long before a deadline the sender stops sleeping and spins.
	// It costs a core: leave it 0 where the engine runs on the same ones.
	Spin time.Duration
	// CPUs are the cores that the client's threads are bound to; empty for all
	// that the process may use.
	CPUs []int
	// Preopen is the number of connections opened before the schedule starts;
	// 0 lets the plan decide, negative opens none. Servers that give every idle
	// connection a thread (llama-server) want none.
	Preopen int
}

// Progress is what a person wants to see while the load runs.
type Progress struct {
	At       int64 // ns on the attempt's clock
	Phase    result.Phase
	Window   int
	Windows  int // load points in all
	Offered  int // requests due so far
	Done     int
	Failed   int
	InFlight int
	End      int64 // when the last window ends, ns on the attempt's clock
}

// DefaultMaxInFlight is the safety limit on requests in flight.
const DefaultMaxInFlight = 20_000

// Recording is what one load run left behind.
type Recording struct {
	Requests []result.Request
	Windows  []result.Window // offered rate and bounds; no metrics yet
	Served   Served
	Harness  Harness
	PlanHash string
	// Stopped says why a ladder ended early; "" where it did not.
	Stopped string
}

// Served is what the probe found out about the server and its tokenizer.
type Served struct {
	Model string // the name that the server gives its model; "" where it lists none
	// Usage says that answers carry the server's token counts; UsageStream that
	// streams have to ask for them, and may.
	Usage, UsageStream bool
	// UsageEvents says that streams ask for a count with every event, because an
	// event may hold several tokens: only so is the time per token defined.
	UsageEvents bool
	// Tokenizer says that the server counts the tokens of a text, and TokenizerBase
	// what it counts beyond the text's own.
	Tokenizer     bool
	TokenizerBase int
	// Vocabulary is the material of prompts with an exact length.
	Vocabulary workload.Vocabulary
	// TokenSource is what counted the words: tokenizer, usage, or none where
	// prompt lengths are only approximate.
	TokenSource string
	Verified    []Verified
}

// Verified is a prompt whose length was checked beforehand.
type Verified struct{ Planned, Counted int }

// Probe asks the server what it needs to know: whether it reports usage, and
// which words make prompts of an exact length for the model it serves. Its
// requests are answered before it returns.
func Probe(ctx context.Context, c Config) (Served, error) { return probe(ctx, c) }

// Run offers the plan to the server and returns when the last request ended or
// the drain's limit passed. An error means that nothing was measured; a client
// that was late or a server that failed is part of the recording.
func Run(ctx context.Context, c Config, clock Clock) (*Recording, error) { return run(ctx, c, clock) }
