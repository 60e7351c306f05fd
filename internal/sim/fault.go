package sim

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FaultKind names what goes wrong.
type FaultKind string

// The faults. The first five are of the whole engine, at a time after the
// start; the others hit a part (rate) of the requests.
const (
	Loading FaultKind = "loading" // every route answers 503 for the first `for`
	Cold    FaultKind = "cold"    // steps take `factor` times as long for the first `for`
	Stall   FaultKind = "stall"   // no step ends from `at` for `for`, again after every `every`
	Die     FaultKind = "die"     // the process ends with exit code 9 at `at`, connections reset

	HTTPStatus  FaultKind = "http"         // an error of `status` in place of an answer
	HTML        FaultKind = "html"         // an HTML page with `status`, 200 by default
	StreamError FaultKind = "stream-error" // an error object after `after` tokens, inside the 200
	Drop        FaultKind = "drop"         // the connection is reset after `after` tokens
	Truncate    FaultKind = "truncate"     // the connection ends after `after` tokens, without the last chunk
	NoDone      FaultKind = "no-done"      // the stream ends well-formed, but without [DONE]
	NoUsage     FaultKind = "no-usage"     // no usage, also when asked for
	Hang        FaultKind = "hang"         // nothing more after `after` tokens
	Short       FaultKind = "short"        // the answer has only `factor` of its length, whatever was asked
)

var perRequest = []FaultKind{HTTPStatus, HTML, StreamError, Drop, Truncate, NoDone, NoUsage, Hang, Short}

// Fault is one thing that goes wrong. Which fields count depends on Kind.
type Fault struct {
	Kind   FaultKind
	At     time.Duration // after the engine is ready
	For    time.Duration
	Every  time.Duration // 0: once
	Factor float64
	Rate   float64 // part of the requests that are hit
	After  int     // tokens emitted before
	Status int
}

// allowed lists the parameters of each kind.
var allowed = map[FaultKind]string{
	Loading: "for", Cold: "for factor", Stall: "at for every", Die: "at",
	HTTPStatus: "status rate", HTML: "status rate", StreamError: "after rate", Drop: "after rate", Truncate: "after rate",
	NoDone: "rate", NoUsage: "rate", Hang: "after rate", Short: "factor rate",
}

// ParseFault reads `kind:name=value,…`, e.g. `stall:at=10s,for=500ms` or
// `http:status=429,rate=0.05`.
func ParseFault(text string) (Fault, error) {
	kind, rest, _ := strings.Cut(text, ":")
	f := Fault{Kind: FaultKind(kind), Rate: 1, Factor: math.NaN()}
	names, known := allowed[f.Kind]
	if !known {
		return f, fmt.Errorf("fault %q: unknown kind", text)
	}
	for item := range strings.SplitSeq(rest, ",") {
		if item == "" {
			continue
		}
		name, value, ok := strings.Cut(item, "=")
		if !ok || !slices.Contains(strings.Fields(names), name) {
			return f, fmt.Errorf("fault %q: %q: %s takes %s", text, item, kind, names)
		}
		var err error
		switch name {
		case "at":
			f.At, err = time.ParseDuration(value)
		case "for":
			f.For, err = time.ParseDuration(value)
		case "every":
			f.Every, err = time.ParseDuration(value)
		case "factor":
			f.Factor, err = strconv.ParseFloat(value, 64)
		case "rate":
			f.Rate, err = strconv.ParseFloat(value, 64)
		case "after":
			f.After, err = strconv.Atoi(value)
		case "status":
			f.Status, err = strconv.Atoi(value)
		}
		if err != nil {
			return f, fmt.Errorf("fault %q: %s: %q is not a value of it", text, name, value)
		}
	}
	if err := f.check(); err != nil {
		return f, fmt.Errorf("fault %q: %w", text, err)
	}
	return f, nil
}

func (f *Fault) check() error {
	if f.At < 0 || f.For < 0 || f.Every < 0 || f.After < 0 {
		return fmt.Errorf("values must not be negative")
	}
	if !(f.Rate >= 0 && f.Rate <= 1) {
		return fmt.Errorf("rate %v is not in [0, 1]", f.Rate)
	}
	switch f.Kind {
	case Loading, Stall:
		if f.For == 0 {
			return fmt.Errorf("want for=DURATION")
		}
		if f.Every > 0 && f.Every <= f.For {
			return fmt.Errorf("every must be longer than for")
		}
	case Cold:
		if f.For == 0 || !(f.Factor >= 1) || math.IsInf(f.Factor, 0) {
			return fmt.Errorf("want for=DURATION and factor of at least 1")
		}
	case Short:
		if !(f.Factor >= 0 && f.Factor < 1) {
			return fmt.Errorf("want factor in [0, 1)")
		}
	case HTTPStatus:
		if f.Status < 400 || f.Status > 599 {
			return fmt.Errorf("want status in [400, 599]")
		}
	case HTML:
		if f.Status == 0 {
			f.Status = http.StatusOK
		}
		if f.Status < 200 || f.Status > 599 {
			return fmt.Errorf("status %d is not in [200, 599]", f.Status)
		}
	case Die, StreamError, Drop, Truncate, NoDone, NoUsage, Hang:
	}
	return nil
}

// String is what ParseFault reads.
func (f Fault) String() string {
	var items []string
	for _, name := range strings.Fields(allowed[f.Kind]) {
		switch {
		case name == "at":
			items = append(items, "at="+f.At.String())
		case name == "for":
			items = append(items, "for="+f.For.String())
		case name == "every" && f.Every > 0:
			items = append(items, "every="+f.Every.String())
		case name == "factor":
			items = append(items, "factor="+strconv.FormatFloat(f.Factor, 'g', -1, 64))
		case name == "rate":
			items = append(items, "rate="+strconv.FormatFloat(f.Rate, 'g', -1, 64))
		case name == "after" && f.After > 0:
			items = append(items, "after="+strconv.Itoa(f.After))
		case name == "status":
			items = append(items, "status="+strconv.Itoa(f.Status))
		}
	}
	return string(f.Kind) + ":" + strings.Join(items, ",")
}

// fate is what happens to one request. Its zero value is that nothing does.
type fate struct {
	reject  *Fault    // an answer in place of the real one
	cut     FaultKind // "" or how the stream is cut
	after   int
	noDone  bool
	noUsage bool
	shorten float64 // 0: not
	short   bool
	names   string // for the log
}

// fateOf draws a request's fate from the seed and its number.
func fateOf(faults []Fault, seed uint64, number int64) fate {
	var out fate
	for i := range faults {
		f := &faults[i]
		if !slices.Contains(perRequest, f.Kind) || unit(mix(mix(seed, uint64(i)+0xfa017), uint64(number))) >= f.Rate {
			continue
		}
		switch f.Kind {
		case HTTPStatus, HTML:
			if out.reject != nil {
				continue
			}
			out.reject = f
		case StreamError, Drop, Truncate, Hang:
			if out.cut != "" {
				continue
			}
			out.cut, out.after = f.Kind, f.After
		case NoDone:
			out.noDone = true
		case NoUsage:
			out.noUsage = true
		case Short:
			out.short, out.shorten = true, f.Factor
		case Loading, Cold, Stall, Die:
		}
		out.names = strings.TrimPrefix(out.names+","+string(f.Kind), ",")
	}
	return out
}

// disturb returns when a step ends that begins at start and would end at end,
// with the faults of the whole engine; all are times since it was ready. During
// a stall the engine does nothing and goes on with its step afterwards.
func disturb(faults []Fault, start, end time.Duration) time.Duration {
	for _, f := range faults {
		if f.Kind == Cold && start < f.For {
			end = start + time.Duration(float64(end-start)*f.Factor)
		}
	}
	for _, f := range faults {
		if f.Kind != Stall {
			continue
		}
		from := f.At
		if f.Every > 0 && start > f.At {
			from += (start - f.At) / f.Every * f.Every
		}
		for ; from < end; from += f.Every {
			switch {
			case from >= start:
				end += f.For
			case start < from+f.For:
				end += from + f.For - start
			}
			if f.Every == 0 {
				break
			}
		}
	}
	return end
}
