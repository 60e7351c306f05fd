// Package quality says how the answers of an engine are judged after its
// measurement: what is asked, how an answer is scored, and what the scores of all
// items come to. It promises that a score is a number between 0 and 1, higher
// being better, and that a total exists only where every item has a score; it
// refuses items and output that it does not understand whole. The package is pure.
package quality

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sbench/internal/canon"
	"sbench/internal/setting"
)

// Method is how an item gets its score.
type Method string

// The methods. A command scores by itself; the others compare an answer of the
// engine with the item's references and take the best of these.
const (
	ExactMatch Method = "exact_match" // the answer is the reference, but for white space around it
	Contains   Method = "contains"    // the reference occurs in the answer
	Regex      Method = "regex"       // the reference is an RE2 pattern that matches somewhere in the answer
	TokenF1    Method = "token_f1"    // F1 of the words in common, normalized as SQuAD does
	Command    Method = "command"     // a program prints a score per item
)

// Methods lists them.
func Methods() []string {
	return []string{string(ExactMatch), string(Contains), string(Regex), string(TokenF1), string(Command)}
}

// Bounds of a definition.
const (
	MaxOutputTokens = 1 << 20
	MaxConcurrency  = 1024
	MaxTimeLimit    = 24 * time.Hour
	maxArguments    = 1000
	maxArgument     = 64 << 10 // bytes
)

// What a definition says where a sweep file does not.
const (
	DefaultOutputTokens = 256
	DefaultConcurrency  = 1
	DefaultTimeLimit    = 10 * time.Minute
)

// Definition says what is asked of the engine of every run of a sweep, and how the
// answers are scored.
type Definition struct {
	Method Method `json:"method"`
	// ItemsPath is a file of JSON Lines; relative to the site's models folder until a
	// batch is frozen. "" where a command brings its own items.
	ItemsPath   string `json:"items_path,omitempty"`
	ItemsDigest string `json:"items_digest,omitempty"` // sha256:<hex>; "" without a file
	// Command is run where the engine runs; {url}, {model}, {items}, {seed} and
	// {max_tokens} are filled in. nil for the other methods.
	Command []string `json:"command,omitempty"`
	// Count is how many items a command without a file scores; 0 with one.
	Count int `json:"count,omitempty"`
	// Endpoint, Temperature and Concurrency are zero for a command.
	Endpoint        setting.Endpoint `json:"endpoint,omitempty"`
	MaxOutputTokens int              `json:"max_output_tokens"`
	Temperature     float64          `json:"temperature"`
	Seed            int64            `json:"seed"`
	Concurrency     int              `json:"concurrency,omitempty"` // requests in flight
	TimeLimit       time.Duration    `json:"time_limit"`            // of the evaluation of one run
}

// teardown is how long an evaluation may take to end when its time is over.
const teardown = 30 * time.Second

// Budget is how much longer a run may take with the evaluation; 0 for nil.
func (d *Definition) Budget() time.Duration {
	if d == nil {
		return 0
	}
	return d.TimeLimit + teardown
}

// Hash identifies what a score is a score of: scores of different hashes are never
// pooled or compared. It is the SHA-256, in hex, of the canonical JSON of
// everything that can change a score, and "" for nil. Where the items lie and the
// limit of time are not part of it.
func (d *Definition) Hash() string {
	if d == nil {
		return ""
	}
	text, err := canon.Marshal(map[string]any{
		"quality_version": int64(1), "method": string(d.Method), "items_digest": d.ItemsDigest, "command": d.Command, "count": int64(d.Count),
		"endpoint": string(d.Endpoint), "max_output_tokens": int64(d.MaxOutputTokens), "temperature": d.Temperature, "seed": d.Seed,
		"concurrency": int64(d.Concurrency),
	})
	if err != nil {
		// Validate lets nothing through that JSON cannot hold.
		return canon.Hash(fmt.Appendf(nil, "%+v", *d))
	}
	return canon.Hash(text)
}

// ErrDefinition is wrapped by every error about a definition.
var ErrDefinition = errors.New("quality")

// Validate checks what every reader relies on.
func (d *Definition) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrDefinition, fmt.Sprintf(format, args...))
	}
	command := d.Method == Command
	switch {
	case !slices.Contains(Methods(), string(d.Method)):
		return bad("unknown method %q", d.Method)
	case (d.ItemsPath == "") != (d.ItemsDigest == ""):
		return bad("a file of items goes with its digest")
	case d.ItemsDigest != "" && !isDigest(d.ItemsDigest):
		return bad("%.80q is no digest", d.ItemsDigest)
	case !command && d.ItemsPath == "":
		return bad("method %s needs a file of items", d.Method)
	case command != (len(d.Command) > 0):
		return bad("a command goes with method %s, and only with it", Command)
	case command && (d.ItemsPath == "") == (d.Count == 0):
		return bad("a command needs a file of items, or the count of the items that it brings")
	case !command && d.Count != 0:
		return bad("a count goes with method %s", Command)
	case d.Count < 0 || d.Count > MaxItems:
		return bad("count %d is not between 1 and %d", d.Count, MaxItems)
	case len(d.Command) > maxArguments || slices.ContainsFunc(d.Command, func(s string) bool { return len(s) > maxArgument || strings.ContainsRune(s, 0) }):
		return bad("the command has more or longer arguments than a program takes")
	case command && (d.Endpoint != "" || d.Temperature != 0 || d.Concurrency != 0):
		return bad("endpoint, temperature and concurrency mean nothing to a command")
	case !command && d.Endpoint != setting.EndpointChat && d.Endpoint != setting.EndpointCompletions:
		return bad("unknown endpoint %q", d.Endpoint)
	case !command && (d.Concurrency < 1 || d.Concurrency > MaxConcurrency):
		return bad("concurrency %d is not between 1 and %d", d.Concurrency, MaxConcurrency)
	case d.MaxOutputTokens < 1 || d.MaxOutputTokens > MaxOutputTokens:
		return bad("max_output_tokens %d is not between 1 and %d", d.MaxOutputTokens, MaxOutputTokens)
	case !(d.Temperature >= 0 && d.Temperature <= 2):
		return bad("temperature %g is not between 0 and 2", d.Temperature)
	case d.Seed < 0 || d.Seed > 1<<31-1:
		return bad("seed %d is not between 0 and %d", d.Seed, 1<<31-1)
	case d.TimeLimit < time.Second || d.TimeLimit > MaxTimeLimit:
		return bad("time_limit %v is not between 1s and %v", d.TimeLimit, MaxTimeLimit)
	}
	return nil
}

func isDigest(text string) bool {
	hex, ok := strings.CutPrefix(text, "sha256:")
	return ok && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == ""
}

// Place is what is filled into a command.
type Place struct {
	URL   string // of the engine's API, with /v1
	Model string // the name to use in requests
	Items string // path of the file where the command runs; "" without one
}

// Argv is the command with its places filled in.
func (d *Definition) Argv(p Place) []string {
	fill := strings.NewReplacer("{url}", p.URL, "{model}", p.Model, "{items}", p.Items,
		"{seed}", fmt.Sprint(d.Seed), "{max_tokens}", fmt.Sprint(d.MaxOutputTokens))
	out := make([]string, len(d.Command))
	for i, a := range d.Command {
		out[i] = fill.Replace(a)
	}
	return out
}
