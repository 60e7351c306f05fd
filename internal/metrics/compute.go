package metrics

import (
	"fmt"
	"math"

	"sbench/internal/result"
)

// Compute fills w.Metrics, w.NullReasons and w.Histograms from the attempt's
// rows; w.Start and w.End bound the window on the attempt's clock. rows may hold
// other phases and load points: latencies come from the requests that were due
// in the window, throughput from the events whose time is in it. slo may be nil.
func Compute(rows []result.Request, w result.Window, slo SLO) result.Window {
	c := computation{
		rows: rows, start: w.Start, end: w.End, seconds: float64(w.End-w.Start) / 1e9,
		values: result.Metrics{}, reasons: map[string]string{}, histograms: map[string][]byte{},
	}
	table := WindowTable()
	for _, m := range table {
		c.values[m.Name] = nil
	}
	c.selectDue()
	if c.seconds <= 0 {
		for _, m := range table {
			c.reasons[m.Name] = "the window has no length"
		}
	} else {
		c.counts()
		c.throughput()
		c.load()
		c.goodput(slo)
		c.latencies()
	}
	w.Metrics, w.NullReasons, w.Histograms = c.values, c.reasons, c.histograms
	return w
}

// computation is one window being computed. due are the requests whose intended
// time lies in it.
type computation struct {
	rows       []result.Request
	due        []*result.Request
	start, end int64
	seconds    float64
	values     result.Metrics
	reasons    map[string]string
	histograms map[string][]byte
}

// selectDue fills due.
func (c *computation) selectDue() {
	for i := range c.rows {
		r := &c.rows[i]
		if r.Phase != result.PhaseWarmup && r.TIntended >= c.start && r.TIntended < c.end {
			c.due = append(c.due, r)
		}
	}
}

// set stores a value; what is not finite is null with the reason.
func (c *computation) set(name string, v float64, reason string) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		c.null(name, reason)
		return
	}
	c.values[name] = &v
}

func (c *computation) null(name, reason string) { c.reasons[name] = reason }

// setIf stores v where everything it needs was known.
func (c *computation) setIf(known bool, name string, v float64, reason string) {
	if known {
		c.set(name, v, reason)
		return
	}
	c.null(name, reason)
}

func (c *computation) inWindow(t *int64) bool {
	return t != nil && *t >= c.start && *t < c.end
}

// EndedWell says whether a request ended with the answer it asked for.
func EndedWell(r *result.Request) bool {
	return r.Outcome == result.OutcomeOK || r.Outcome == result.OutcomeLengthMismatch
}

// offered says whether the request was offered at all: a plan that was stopped
// cancels what it had not offered yet.
func offered(r *result.Request) bool { return r.Outcome != result.OutcomeCancelledByPlan }

// ended is when a request left the system: its last event with text where it
// ended well, else its end; nil where it was still there when it was cut off.
func ended(r *result.Request) *int64 {
	switch {
	case r.Outcome == result.OutcomeCutOff:
		return nil
	case EndedWell(r) && r.TTokN != nil:
		return r.TTokN
	}
	return r.TEnd
}

const (
	noUsage       = "the server did not say how many tokens it generated"
	noPromptUsage = "the server did not say how many prompt tokens there were"
	noRequests    = "no requests were due in the window"
)

func (c *computation) counts() {
	counts := map[result.Outcome]int{}
	var input, cached, output float64
	nInput, nCached, nOutput, nOffered, nWell := 0, 0, 0, 0, 0
	for _, r := range c.due {
		counts[r.Outcome]++
		if offered(r) {
			nOffered++
		}
		if r.InputTokens != nil {
			input += float64(*r.InputTokens)
			nInput++
		}
		if r.CachedTokens != nil {
			cached += float64(*r.CachedTokens)
			nCached++
		}
		if EndedWell(r) {
			nWell++
			if r.OutputTokens != nil {
				output += float64(*r.OutputTokens)
				nOutput++
			}
		}
	}
	for _, o := range Outcomes() {
		c.set("requests_"+string(o), float64(counts[o]), "")
	}
	c.set("requests_offered", float64(nOffered), "")
	c.set("offered_rate", float64(nOffered)/c.seconds, "")
	c.set("error_rate", float64(nOffered-nWell)/float64(nOffered), noRequests)
	c.set("input_tokens_mean", input/float64(nInput), noPromptUsage)
	c.set("output_tokens_mean", output/float64(nOutput), noUsage)
	c.setIf(nCached > 0 && nCached == nInput, "cached_tokens_ratio", cached/input, "the server does not report cached prompt tokens")
}

func (c *computation) throughput() {
	var output, input float64
	completed, well := 0, 0
	outputKnown, inputKnown := true, true
	for i := range c.rows {
		r := &c.rows[i]
		if r.Phase == result.PhaseWarmup {
			continue
		}
		tokens, known := c.tokensInWindow(r)
		output += tokens
		outputKnown = outputKnown && known
		if c.inWindow(r.TTok1) {
			if r.InputTokens == nil {
				inputKnown = false
			} else {
				input += float64(*r.InputTokens)
			}
		}
		if c.inWindow(ended(r)) {
			completed++
			if EndedWell(r) {
				well++
			}
		}
	}
	c.setIf(outputKnown, "output_tokens_per_s", output/c.seconds, noUsage)
	c.setIf(inputKnown, "input_tokens_per_s", input/c.seconds, noPromptUsage)
	c.set("requests_per_s", float64(well)/c.seconds, "")
	c.set("achieved_rate", float64(completed)/c.seconds, "")
	c.null("energy_joules", "no energy counter was read")
	c.null("energy_per_output_token", "no energy counter was read")
}

// tokensInWindow credits a request's tokens to the window by the times of its
// events. Where the tokens of each event are unknown, the request's tokens are
// spread evenly over its events.
func (c *computation) tokensInWindow(r *result.Request) (tokens float64, known bool) {
	n := len(r.EventTimes)
	if n == 0 {
		// An answer that did not stream: all its tokens come at once.
		if !c.inWindow(r.TTokN) {
			return 0, true
		}
		if r.OutputTokens == nil {
			return 0, false
		}
		return float64(*r.OutputTokens), true
	}
	perEvent := len(r.EventTokens) == n
	in := 0
	for i, t := range r.EventTimes {
		if t < c.start || t >= c.end {
			continue
		}
		in++
		if perEvent {
			tokens += float64(r.EventTokens[i])
		}
	}
	if in == 0 || perEvent {
		return tokens, true
	}
	if r.OutputTokens == nil {
		return 0, false
	}
	return float64(*r.OutputTokens) * float64(in) / float64(n), true
}

func (c *computation) goodput(slo SLO) {
	limits, err := slo.limits()
	reason := "no SLO was set"
	if err != nil {
		reason = err.Error()
	}
	if len(limits) == 0 {
		c.null("goodput", reason)
		c.null("goodput_ratio", reason)
		return
	}
	met, n := 0, 0
	for _, r := range c.due {
		if !offered(r) {
			continue
		}
		n++
		if EndedWell(r) && meets(r, limits) {
			met++
		}
	}
	c.set("goodput", float64(met)/c.seconds, "")
	c.set("goodput_ratio", float64(met)/float64(n), noRequests)
}

// meets judges one request that ended well. A quantity that is undefined for it
// (tpot of one token, ttfo of pure reasoning) cannot break its limit; a missing
// ttft or e2e does.
func meets(r *result.Request, limits []limit) bool {
	for _, l := range limits {
		v := latency(l.base, r)
		if v == nil && l.base != "tpot" && l.base != "ttfo" {
			return false
		}
		if v != nil && *v > l.seconds {
			return false
		}
	}
	return true
}

// latency is a latency of one request in seconds, nil where undefined.
func latency(base string, r *result.Request) *float64 {
	switch base {
	case "schedule_delay":
		return since(r.TWritten, &r.TIntended)
	case "ttft":
		return since(r.TTok1, &r.TIntended)
	case "ttft_service":
		return since(r.TTok1, r.TWritten)
	case "ttfo":
		return since(r.TContent1, &r.TIntended)
	case "e2e":
		return since(r.TTokN, &r.TIntended)
	case "tpot":
		return TPOT(r)
	case "tokens_per_s_user":
		if v := TPOT(r); v != nil && *v > 0 {
			inverse := 1 / *v
			return &inverse
		}
		return nil
	}
	panic(fmt.Sprintf("metrics: no latency %q", base))
}

// since is a-b in seconds, nil where either is unknown.
func since(a, b *int64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	s := float64(*a-*b) / 1e9
	return &s
}

// TPOT is the request's time per output token in seconds, nil where it is
// undefined: no more tokens than the first event held, or counts unknown.
func TPOT(r *result.Request) *float64 {
	if r.TTok1 == nil || r.TTokN == nil || r.OutputTokens == nil || r.TokensFirst == nil {
		return nil
	}
	n := *r.OutputTokens - *r.TokensFirst
	if n <= 0 || *r.TokensFirst <= 0 {
		return nil
	}
	s := float64(*r.TTokN-*r.TTok1) / 1e9 / float64(n)
	return &s
}
