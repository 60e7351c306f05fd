package regress

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"sbench/internal/compare"
	"sbench/internal/metrics"
	"sbench/internal/stats"
)

// Limits of the nightly judgement.
const (
	screenP     = 1e-3 // of the screen, one-sided
	confirmP    = 0.01 // of the confirmation, one-sided
	confirmBy   = 0.03 // relative: the least that is called a regression
	lookFor     = 0.05 // relative: what a confirmation is sized for
	falseShare  = 0.05 // false discoveries among the published
	fewNights   = 8    // below it a series is not screened
	meanNights  = 30   // that the prediction is made of
	splitNights = 60   // that a step is looked for in
	stratumSize = 10   // from which tonight's common shift is taken out
	minConfirm  = 5    // runs a side
	maxConfirm  = 20
)

// Series is a series with its nights, oldest first; the last is tonight.
type Series struct {
	Hash    string
	Stratum string // hardware, engine and image: what shares a cause
	Nights  []Night
	// Segment is the index of the first night after the latest confirmed step; 0
	// for none. The location starts again there, the spread is kept.
	Segment int
}

// Candidate is a series that the screen wants run again.
type Candidate struct {
	Series   string  `json:"series_hash"`
	Stratum  string  `json:"stratum"`
	Metric   string  `json:"metric"`
	Estimate float64 `json:"estimate"` // relative change, worse positive
	P        float64 `json:"p"`        // of the prediction, one-sided
	Step     bool    `json:"step"`     // a step within the last nights, not tonight alone
	Tonight  string  `json:"setting_hash"`
	// Before is the setting of the nights before: another one where a digest or a
	// version changed.
	Before string `json:"before_setting_hash"`
	Runs   int    `json:"runs"` // a side, of the confirmation
	// Since is how many nights the step is old, tonight included; 1 for tonight.
	Since int `json:"since_nights"`
	// Witness: not suspected by itself, but run again for a drift of its stratum.
	Witness   bool `json:"witness"`
	Synthetic int  `json:"synthetic_nights"`
}

// Drift is a shift of everything in a stratum tonight: driver, firmware, heat.
type Drift struct {
	Stratum string  `json:"stratum"`
	Metric  string  `json:"metric"`
	Shift   float64 `json:"shift"` // relative, worse positive
	P       float64 `json:"p"`     // two-sided
	Series  int     `json:"series"`
}

// Screened is what the screen says of a night.
type Screened struct {
	Candidates []Candidate `json:"candidates"`
	Drifts     []Drift     `json:"drifts"`
	Screened   int         `json:"screened"`
	// Unscreened counts series that could not be: too few nights, a young segment.
	Unscreened map[string]int `json:"unscreened"`
}

// worse is the sign that makes a change of a metric positive where it is worse.
func worse(metric string) float64 {
	if m, _ := metrics.Find(metric); m.Better == metrics.Higher {
		return -1
	}
	return 1
}

// line is one metric of one series as a row of nightly means of logarithms, worse
// upward.
type line struct {
	series *Series
	metric string
	means  []float64
	run    float64 // within-night deviation
}

// Screen looks at each series for a change for the worse, tonight or within the
// last two weeks. It is cheap and calibrated: about one to two candidates in a
// thousand without any change. What it finds is to be run again, not believed.
func Screen(all []Series) Screened {
	out := Screened{Candidates: []Candidate{}, Drifts: []Drift{}, Unscreened: map[string]int{}}
	var lines []line
	for i := range all {
		s := &all[i]
		found := false
		for _, metric := range compare.Gating() {
			if l, why := lineOf(s, metric); why == "" {
				lines, found = append(lines, l), true
			} else if !found && metric == compare.Gating()[len(compare.Gating())-1] {
				out.Unscreened[why]++
			}
		}
		if found {
			out.Screened++
		}
	}
	out.Drifts = removeCommonShift(lines)
	best := map[string]Candidate{}
	for _, l := range lines {
		if c, ok := l.screen(); ok {
			if known, again := best[c.Series]; !again || c.P < known.P {
				best[c.Series] = c
			}
		}
	}
	for _, hash := range slices.Sorted(maps.Keys(best)) {
		out.Candidates = append(out.Candidates, best[hash])
	}
	return out
}

// lineOf reads a metric's nights. why says why they cannot be screened.
func lineOf(s *Series, metric string) (l line, why string) {
	l = line{series: s, metric: metric}
	sign := worse(metric)
	segment := s.Segment
	if len(s.Nights) > splitNights {
		segment -= len(s.Nights) - splitNights
	}
	for _, n := range s.Nights[max(0, len(s.Nights)-splitNights):] {
		x := stats.Logs(n.Values[metric])
		if len(x) == 0 || !finite(x) {
			segment--
			continue
		}
		l.means = append(l.means, sign*stats.Mean(x))
	}
	last := s.Nights[len(s.Nights)-1]
	switch {
	case len(l.means) <= fewNights:
		return l, "too few nights"
	case len(last.Values[metric]) == 0:
		return l, "no value tonight"
	case segment > 0 && len(l.means)-segment <= 5:
		return l, "silent after a confirmed step"
	}
	if segment > 0 && segment < len(l.means) {
		// The location restarts with the segment; the spread is kept.
		shift := stats.Mean(l.means[segment:len(l.means)-1]) - stats.Mean(l.means[:segment])
		for i := range segment {
			l.means[i] += shift
		}
	}
	l.run = SpreadOf(s.Nights[:len(s.Nights)-1], metric).Run
	return l, ""
}

func (l line) history() []float64 {
	h := l.means[:len(l.means)-1]
	return h[max(0, len(h)-meanNights):]
}

func (l line) residual() float64 { return l.means[len(l.means)-1] - stats.Mean(l.history()) }

// removeCommonShift takes tonight's median residual out of every large stratum,
// and tests it on its own: what shifts everything is one cause, not hundreds of
// regressions.
func removeCommonShift(lines []line) []Drift {
	groups := map[[2]string][]int{}
	for i, l := range lines {
		key := [2]string{l.series.Stratum, l.metric}
		groups[key] = append(groups[key], i)
	}
	drifts := []Drift{}
	for _, key := range slices.SortedFunc(maps.Keys(groups), func(a, b [2]string) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	}) {
		members := groups[key]
		if len(members) < stratumSize {
			continue
		}
		scaled := make([]float64, len(members)) // each by its own deviation
		raw := make([]float64, len(members))
		for k, i := range members {
			raw[k] = lines[i].residual()
			scaled[k] = raw[k] / max(1e-12, stats.StdDev(lines[i].history()))
		}
		median := stats.Median(raw)
		n := float64(len(members))
		// The median of n values varies pi/2 times as much as their mean.
		z := stats.Median(scaled) / (max(1, stats.MADSigma(scaled)) * math.Sqrt(math.Pi/2/n))
		if p := math.Erfc(math.Abs(z) / math.Sqrt2); p < screenP && math.Abs(median) > 0.002 {
			drifts = append(drifts, Drift{Stratum: key[0], Metric: key[1], Shift: math.Expm1(median), P: p, Series: len(members)})
		}
		for _, i := range members {
			lines[i].means[len(lines[i].means)-1] -= median
		}
	}
	return drifts
}

// screen decides about one metric of one series.
func (l line) screen() (Candidate, bool) {
	history := l.history()
	tonight := l.means[len(l.means)-1]
	t := stats.Predictive(history, tonight)
	if stats.StdDev(history) < 1e-12 { // a history without spread predicts nothing but itself
		t.P = 1
		if tonight > stats.Mean(history)+1e-9 {
			t.P = 0
		}
	}
	step := stats.EnergySplit(l.means, 2, min(14, len(l.means)/2))
	stepped := step.Up && step.Scaled > stats.EnergyCritical(len(l.means))
	if !(t.P < screenP) && !stepped {
		return Candidate{}, false
	}
	s := l.series
	c := Candidate{
		Series: s.Hash, Stratum: s.Stratum, Metric: l.metric, P: t.P, Step: stepped,
		Tonight: s.Nights[len(s.Nights)-1].SettingHash, Estimate: math.Expm1(l.residual()), Since: 1,
		Runs: min(maxConfirm, max(minConfirm, stats.Detect(l.run, lookFor, confirmP, 0.8))),
	}
	if stepped {
		c.Estimate = math.Expm1(stats.Mean(l.means[step.Index:]) - stats.Mean(l.means[:step.Index]))
		c.Since = max(1, len(l.means)-step.Index)
	}
	before := s.Nights[:len(s.Nights)-1]
	if stepped { // what was pinned before the step, not after it
		before = before[:max(1, len(before)+1-c.Since)]
	}
	c.Before = before[len(before)-1].SettingHash
	c.Synthetic = synthetic(s.Nights)
	return c, true
}

// Alert is one regression, or one cause of several.
type Alert struct {
	Stratum string   `json:"stratum"`
	Series  []string `json:"series"`
	P       float64  `json:"p"` // Simes' where there are several
	Text    string   `json:"text"`
}

// Publish controls the false discoveries among all that were run again, and
// groups what shares a cause: three or more of one stratum are one alert.
func Publish(list []Confirmation) []Alert {
	p := make([]float64, len(list))
	for i, c := range list {
		p[i] = 1
		if c.ConfirmP != nil {
			p[i] = *c.ConfirmP
		}
	}
	reject, adjusted := stats.BenjaminiHochberg(p, falseShare)
	groups := map[string][]int{}
	for i := range list {
		list[i].PAdjusted = &adjusted[i]
		if list[i].Published = list[i].Confirmed && reject[i]; list[i].Published {
			groups[list[i].Stratum] = append(groups[list[i].Stratum], i)
		}
	}
	alerts := []Alert{}
	for _, stratum := range slices.Sorted(maps.Keys(groups)) {
		members := groups[stratum]
		if len(members) >= 3 {
			a := Alert{Stratum: stratum}
			var ps []float64
			for _, i := range members {
				a.Series, ps = append(a.Series, list[i].Series), append(ps, p[i])
			}
			a.P = stats.Simes(ps)
			a.Text = fmt.Sprintf("%d series of %s are worse: look for one cause", len(members), stratum)
			alerts = append(alerts, a)
			continue
		}
		for _, i := range members {
			alerts = append(alerts, Alert{Stratum: stratum, Series: []string{list[i].Series}, P: p[i], Text: list[i].Reason})
		}
	}
	return alerts
}
