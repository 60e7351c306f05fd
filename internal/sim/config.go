package sim

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"sbench/internal/version"
)

// Config is everything that decides what the engine does and when.
type Config struct {
	Listen         string // host:port, or unix:PATH
	Model          string // the only one that requests may name; "": any
	Limits         Limits
	Cost           Cost
	StreamInterval int // tokens in an event; the first and the last are never held back
	EventsPerWrite int // events gathered before they are written
	EarlyHeaders   bool
	Echo           bool // an answer that may end by itself is the last line of its prompt
	MeanOutput     int  // tokens of an answer whose request does not ignore the end; 0: always the maximum
	Seed           uint64
	Noise          Noise
	Names          Names
	Faults         []Fault
	Log            string // file of true times; "": none
	Spin           time.Duration
}

// DefaultConfig is what the flags default to.
func DefaultConfig() Config {
	return Config{
		Listen: "127.0.0.1:8000", Limits: DefaultLimits(), Cost: DefaultCost(),
		StreamInterval: 1, EventsPerWrite: 1, Seed: 1, Spin: 50 * time.Microsecond,
	}
}

// errHelp says that the usage was asked for and printed.
var errHelp = errors.New("help")

// errVersion says that the version was asked for.
var errVersion = errors.New("version")

// parseFlags reads the command line; usage and the package's own complaints go
// to w.
func parseFlags(args []string, w io.Writer) (Config, error) {
	c := DefaultConfig()
	f := flag.NewFlagSet("sbench-sim", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	showVersion := f.Bool("version", false, "print the version and exit")

	f.StringVar(&c.Listen, "listen", c.Listen, "`address` to listen on: host:port (port 0: any free one) or unix:PATH")
	f.StringVar(&c.Model, "model", c.Model, "the only `name` of a model that requests may ask for (default: any)")
	f.StringVar(&c.Log, "log", c.Log, "`file` for the true time of every emission: JSON lines, CLOCK_MONOTONIC in nanoseconds")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "seed of texts, lengths, acceptance, noise and faults")
	f.DurationVar(&c.Spin, "spin", c.Spin, "how long to spin before a step ends rather than sleep")
	c.ModelFlags(f)

	f.BoolVar(&c.Echo, "echo", c.Echo, "answer with the last line of the prompt where the request lets the answer end by itself")
	f.IntVar(&c.EventsPerWrite, "events-per-write", c.EventsPerWrite, "events gathered before they are written")
	f.BoolVar(&c.EarlyHeaders, "early-headers", c.EarlyHeaders, "send headers (and the role of a chat) on arrival, not with the first token")
	f.StringVar(&c.Names.Run, "run", "", "`name` the run's factor is drawn for (default: $SLURM_JOB_ID.$SLURM_STEP_ID, else the time of its start)")
	f.StringVar(&c.Names.Night, "night", "", "`name` the night's factor is drawn for (default: the date, UTC)")
	f.StringVar(&c.Names.Node, "node", "", "`name` the node's factor is drawn for (default: $SLURMD_NODENAME, else the host)")
	f.Func("fault", "what goes wrong, `KIND:NAME=VALUE,…`; several by semicolons, or by giving the flag again:\n"+faultHelp(), func(text string) error {
		for one := range strings.SplitSeq(text, ";") {
			fault, err := ParseFault(strings.TrimSpace(one))
			if err != nil {
				return err
			}
			c.Faults = append(c.Faults, fault)
		}
		return nil
	})

	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(w, "usage: sbench-sim [flags]\n\nA simulated inference engine: an OpenAI-compatible server that batches in real time.\n\n")
		f.SetOutput(w)
		f.PrintDefaults()
		return c, errHelp
	case err != nil:
		return c, err
	case f.NArg() > 0:
		return c, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case *showVersion:
		return c, errVersion
	}
	return c, c.check()
}

// ModelFlags defines the flags that say how fast the engine is and what it holds.
func (c *Config) ModelFlags(f *flag.FlagSet) {
	l := &c.Limits
	f.StringVar((*string)(&l.Batching), "batching", string(l.Batching), "continuous or static")
	f.IntVar(&l.Slots, "slots", l.Slots, "most sequences in a batch")
	f.IntVar(&l.StepTokens, "step-tokens", l.StepTokens, "most tokens in a step; prompts are cut into chunks that fit")
	f.IntVar(&l.Context, "context", l.Context, "most tokens of a prompt and its answer")
	f.IntVar(&l.KVTokens, "kv-tokens", l.KVTokens, "tokens of KV memory; a batch that outgrows it is preempted (0: no limit)")
	f.IntVar(&l.PrefixCacheTokens, "prefix-cache-tokens", l.PrefixCacheTokens, "tokens of prompts kept for requests with the same beginning (0: no cache)")
	f.IntVar(&l.Speculative, "speculative", l.Speculative, "tokens drafted for each step")
	f.Float64Var(&l.Acceptance, "acceptance", l.Acceptance, "probability that a drafted token is accepted")

	k := &c.Cost
	f.Float64Var(&k.PrefillRate, "prefill-rate", k.PrefillRate, "prompt tokens per second")
	f.Float64Var(&k.DecodeRate, "decode-rate", k.DecodeRate, "decoding steps per second with one sequence")
	f.DurationVar(&k.PerSequence, "sequence-cost", k.PerSequence, "what each further sequence adds to a decoding step")
	f.DurationVar(&k.Overhead, "step-overhead", k.Overhead, "what every step takes besides")
	f.Float64Var(&k.PeakFLOPS, "peak-flops", k.PeakFLOPS, "arithmetic peak in 1/s; selects the roofline cost model, in place of the two rates")
	f.Float64Var(&k.Bandwidth, "bandwidth", k.Bandwidth, "roofline: memory bandwidth in bytes/s")
	f.Float64Var(&k.Parameters, "parameters", k.Parameters, "roofline: weights that a token passes")
	f.Float64Var(&k.BytesPerParameter, "bytes-per-parameter", k.BytesPerParameter, "roofline: bytes of a weight")
	f.Float64Var(&k.KVBytesPerToken, "kv-bytes-per-token", k.KVBytesPerToken, "roofline: bytes of keys and values of a token")
	f.Float64Var(&k.Efficiency, "efficiency", k.Efficiency, "roofline: part of both peaks that is reached")

	f.IntVar(&c.StreamInterval, "stream-interval", c.StreamInterval, "tokens in an event; the first and the last are never held back")
	f.IntVar(&c.MeanOutput, "mean-output", c.MeanOutput, "mean tokens of an answer where the request lets it end by itself (0: always max_tokens)")
	f.Func("noise", "sigmas of log-normal factors on the time of steps: `run=S,night=S,node=S,step=S`", func(text string) (err error) {
		c.Noise, err = ParseNoise(text)
		return err
	})
}

func faultHelp() string {
	var b strings.Builder
	for _, kind := range append([]FaultKind{Loading, Cold, Stall, Die}, perRequest...) {
		fmt.Fprintf(&b, "  %-12s %s\n", kind, allowed[kind])
	}
	return b.String()
}

func (c Config) check() error {
	if err := errors.Join(c.Limits.check(), c.Cost.check()); err != nil {
		return err
	}
	switch {
	case c.StreamInterval < 1 || c.EventsPerWrite < 1:
		return fmt.Errorf("--stream-interval and --events-per-write must be positive")
	case c.MeanOutput < 0 || c.Spin < 0:
		return fmt.Errorf("--mean-output and --spin must not be negative")
	}
	return nil
}

// defaultNames fills what the command line leaves out from the environment.
func defaultNames(n Names, now time.Time) Names {
	if n.Run == "" {
		// An engine that sbench starts is not told its job: every start is a run.
		n.Run = now.UTC().Format(time.RFC3339Nano)
		if job := os.Getenv("SLURM_JOB_ID"); job != "" {
			n.Run = job + "." + os.Getenv("SLURM_STEP_ID")
		}
	}
	if n.Night == "" {
		n.Night = now.UTC().Format(time.DateOnly)
	}
	if n.Node == "" {
		n.Node = os.Getenv("SLURMD_NODENAME")
	}
	if n.Node == "" {
		if host, err := os.Hostname(); err == nil {
			n.Node = host
		}
	}
	return n
}

// build is what the engine says its version is.
func build() string { return version.String() }
