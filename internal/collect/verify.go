package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sbench/internal/lifecycle"
	"sbench/internal/metrics"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/seal"
	"sbench/internal/store"
)

// Bounds of what a manifest says; a runner stays far below them.
const (
	maxReason  = 4 << 10 // bytes of one line
	maxReasons = 1000
	maxChecks  = 1000
	maxNodes   = 10_000
	maxWindows = 1000
	// maxNumbers bounds the files of one row for the attempt, and one for each window:
	// every worker holds them in memory.
	maxNumbers     = 64 << 20
	maxFingerprint = 8 << 20
	maxDuration    = 30 * 24 * time.Hour
	maxAhead       = 24 * time.Hour // of a node's clock
	// maxMetric is more than anything that is measured, in any unit, and small
	// enough that sums of squares stay numbers.
	maxMetric = 1e15
	// leastMetric is below nought by what two threads that note times may differ: an
	// answer can be read before the write of its request has returned.
	leastMetric = -1e-3
)

var nodeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`)

// verdict is a verified attempt, or why it is refused.
type verdict struct {
	sealed store.Sealed
	err    error
}

// verifyAll verifies folders side by side. It ends early, with any verdicts,
// when ctx does.
func (c *Collector) verifyAll(ctx context.Context, folders []folder) []verdict {
	verdicts := make([]verdict, len(folders))
	var group errgroup.Group
	group.SetLimit(c.options.Workers)
	for i, f := range folders {
		group.Go(func() error {
			if ctx.Err() == nil {
				verdicts[i].sealed, verdicts[i].err = c.verify(f)
			}
			return nil
		})
	}
	_ = group.Wait()
	return verdicts
}

// verify reads a folder and checks all of it.
func (c *Collector) verify(f folder) (store.Sealed, error) {
	s, err := c.open(f)
	if err != nil {
		return store.Sealed{}, err
	}
	defer s.Close()
	task, err := match(f, s.Manifest, c.now())
	if err != nil {
		return store.Sealed{}, err
	}
	m := s.Manifest
	out := store.Sealed{Attempt: store.NewAttempt{
		Attempt: m.Attempt, Sealed: true, ExitClass: m.ExitClass, Valid: m.Valid, EnvVerified: m.EnvVerified,
		Reasons: printables(m.Reasons), Blamed: m.Blamed, Signature: printable(m.Signature, maxReason), Checks: printableChecks(m.Checks),
		Runner: printable(m.Runner, maxReason), Dir: f.dir, Files: m.Files,
	}}
	out.Attempt.StepID = printable(m.Attempt.StepID, maxReason)
	out.Attempt.HardwareClass = task.HardwareClass
	read := map[string][]byte{}
	for _, file := range m.Files {
		if m.ExitClass == lifecycle.ExitMeasured && (file.Name == result.ResultFile || file.Name == result.WindowFile) {
			if file.Size > maxNumbers {
				return store.Sealed{}, fmt.Errorf("%s has %d bytes, more than the limit %d: %w", file.Name, file.Size, maxNumbers, seal.ErrHostile)
			}
			if read[file.Name], err = s.Read(file.Name); err != nil {
				return store.Sealed{}, err
			}
			continue
		}
		if err := s.Check(file.Name); err != nil {
			return store.Sealed{}, err
		}
	}
	if m.ExitClass != lifecycle.ExitMeasured {
		return out, nil
	}
	return out, decode(&out, m, read)
}

// open tries the users that the run's batches ran as.
func (c *Collector) open(f folder) (*seal.Sealed, error) {
	var first error
	var tried []int
	for _, t := range f.tasks {
		if slices.Contains(tried, t.UID) {
			continue
		}
		tried = append(tried, t.UID)
		limits := c.options.Limits
		limits.UID = &t.UID
		s, err := seal.Open(f.dir, limits)
		if err == nil {
			return s, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// match finds the task that the manifest names, and checks that it is the
// manifest of this run, read at a time.
func match(f folder, m result.Manifest, at time.Time) (store.Candidate, error) {
	a := m.Attempt
	refuse := func(kind, format string, args ...any) (store.Candidate, error) {
		return store.Candidate{}, fault{kind, fmt.Errorf("manifest: "+format, args...)}
	}
	i := slices.IndexFunc(f.tasks, func(t store.Candidate) bool { return t.Token == a.Token && t.TaskIndex == a.TaskIndex })
	if i < 0 {
		return refuse(kindForeign, "run %d was never in task %d of batch %.40q", f.runID, a.TaskIndex, a.Token)
	}
	t := f.tasks[i]
	switch {
	case a.RunID != f.runID || fmt.Sprintf("%d-r%d", a.JobIDRaw, a.RestartCount) != f.name:
		return refuse(kindForeign, "it is of run %d, job %d-r%d", a.RunID, a.JobIDRaw, a.RestartCount)
	case a.Sweep != t.SweepID || a.SettingHash != t.SettingHash || a.SeriesHash != t.SeriesHash || a.Repeat != t.Repeat:
		return refuse(kindForeign, "sweep %d, setting %.12q, repeat %d are not the run's", a.Sweep, a.SettingHash, a.Repeat)
	case a.Cluster != t.Cluster || a.Site != t.Site:
		return refuse(kindForeign, "cluster %.40q of site %.40q is not the batch's", a.Cluster, a.Site)
	case a.HardwareClass != t.HardwareClass:
		return refuse(kindForeign, "hardware class %.40q, the site is %s", a.HardwareClass, t.HardwareClass)
	case !m.ExitClass.Known() || m.ExitClass == lifecycle.ExitLost:
		return refuse(kindUnreadable, "unknown exit class %.40q", m.ExitClass)
	case m.Valid && (m.ExitClass != lifecycle.ExitMeasured || !m.EnvVerified):
		return refuse(kindUnreadable, "valid, and yet %s with environment verified %v", m.ExitClass, m.EnvVerified)
	case a.StartedAt.IsZero() || a.EndedAt.Before(a.StartedAt) || a.EndedAt.Sub(a.StartedAt) > maxDuration:
		return refuse(kindUnreadable, "it took from %s to %s", a.StartedAt, a.EndedAt)
	case a.EndedAt.After(at.Add(maxAhead)):
		return refuse(kindUnreadable, "it ended at %s, and now it is %s", a.EndedAt, at)
	case len(m.Reasons) > maxReasons || len(m.Checks) > maxChecks || len(a.Nodes) > maxNodes:
		return refuse(kindUnreadable, "%d reasons, %d checks, %d nodes", len(m.Reasons), len(m.Checks), len(a.Nodes))
	case slices.ContainsFunc(m.Blamed, func(n string) bool { return !slices.Contains(a.Nodes, n) }):
		return refuse(kindUnreadable, "it blames %.100q, which are not its nodes", m.Blamed)
	case len(a.Nodes) == 0 || slices.ContainsFunc(a.Nodes, func(n string) bool { return !nodeName.MatchString(n) }):
		return refuse(kindUnreadable, "node names %.100q", a.Nodes)
	}
	return t, nil
}

// decode reads what a measured attempt measured.
func decode(out *store.Sealed, m result.Manifest, read map[string][]byte) error {
	refuse := func(format string, args ...any) error { return fault{kindUnreadable, fmt.Errorf(format, args...)} }
	for _, name := range []string{result.ResultFile, result.WindowFile, result.RequestsFile} {
		if !slices.ContainsFunc(m.Files, func(f result.File) bool { return f.Name == name }) {
			return refuse("measured, but %s is missing", name)
		}
	}
	r, err := resultfile.DecodeResultNumbers(read[result.ResultFile])
	if err != nil {
		return undecodable(err)
	}
	windows, err := resultfile.DecodeWindowNumbers(read[result.WindowFile])
	if err != nil {
		return undecodable(err)
	}
	switch a, b := resultfile.KeyOf(m.Attempt), resultfile.KeyOf(r.Attempt); {
	case a != b:
		return fault{kindForeign, fmt.Errorf("%s is of run %d, job %d-r%d", result.ResultFile, b.RunID, b.JobIDRaw, b.RestartCount)}
	case r.Valid != m.Valid || r.EnvVerified != m.EnvVerified:
		return refuse("%s and the manifest do not agree about its validity", result.ResultFile)
	case r.MetricsVersion == "" || len(r.MetricsVersion) > 32:
		return refuse("metrics version %.40q", r.MetricsVersion)
	case len(windows) == 0 || len(windows) > maxWindows:
		return refuse("%d windows", len(windows))
	}
	if err := checkMetrics(r.Metrics); err != nil {
		return refuse("%s: %w", result.ResultFile, err)
	}
	if err := checkQuality(r.Metrics); err != nil {
		return refuse("%s: %w", result.ResultFile, err)
	}
	for i := range windows {
		w := &windows[i]
		if err := checkMetrics(w.Metrics); err != nil {
			return refuse("window %d: %w", w.Index, err)
		}
		if w.Index < 0 || w.End < w.Start || !sane(w.OfferedRate) ||
			slices.ContainsFunc(windows[:i], func(o result.Window) bool { return o.Index == w.Index }) {
			return refuse("window %d: from %d to %d at %v/s", w.Index, w.Start, w.End, w.OfferedRate)
		}
		w.Findings, w.NullReasons = printables(w.Findings), printableMap(w.NullReasons)
	}
	r.Findings, r.NullReasons, r.PlanHash = printables(r.Findings), printableMap(r.NullReasons), printable(r.PlanHash, maxReason)
	if len(r.Fingerprint) > maxFingerprint || bytes.Contains(r.Fingerprint, []byte(`\u0000`)) || len(r.Fingerprint) > 0 && !json.Valid(r.Fingerprint) {
		return refuse("the fingerprint is no JSON that can be kept")
	}
	if out.FingerprintHash, err = environmentKey(r.Fingerprint); err != nil {
		return refuse("%w", err)
	}
	out.ImageDigest, out.Flags = resolvedFlags(r.Fingerprint)
	out.Result, out.Windows = &r, windows
	return nil
}

// undecodable is the fault of a file that its digest vouches for and that cannot
// be read: what unpacks without end was made to do harm.
func undecodable(err error) error {
	if errors.Is(err, resultfile.ErrBounds) {
		return fault{kindHostile, err}
	}
	return fault{kindUnreadable, err}
}

// checkMetrics refuses names that are not in the table and values that no run can
// have: they would be read as something that was measured.
func checkMetrics(m result.Metrics) error {
	for name, v := range m {
		if v != nil && !sane(*v) {
			return fmt.Errorf("%.60q is %v", name, *v)
		}
	}
	known := 0
	for _, row := range metrics.Table() {
		if _, ok := m[row.Name]; ok {
			known++
		}
	}
	if known < len(m) {
		return errors.New("metrics that the table does not know")
	}
	return nil
}

// sane reports whether a metric may have the value: all of them are times, counts,
// rates and shares. NaN is not.
func sane(v float64) bool { return v >= leastMetric && v <= maxMetric }

// checkQuality refuses scores that no evaluation gives: outside of 0 to 1, or a total
// although items have none.
func checkQuality(m result.Metrics) error {
	score, items, scored := m[metrics.QualityScore], m[metrics.QualityItems], m[metrics.QualityScored]
	if score == nil {
		return nil
	}
	if !(*score >= 0 && *score <= 1) || items == nil || scored == nil || *items < 1 || *items != *scored {
		return fmt.Errorf("a score of %v of %v items, of which %v have one", *score, text(items), text(scored))
	}
	return nil
}

func text(v *float64) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprint(*v)
}

// printable makes a text that PostgreSQL takes and a terminal survives.
func printable(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' && r != '\n' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}

func printables(list []string) []string {
	out := make([]string, min(len(list), maxReasons))
	for i := range out {
		out[i] = printable(list[i], maxReason)
	}
	return out
}

func printableMap(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[printable(k, maxReason)] = printable(v, maxReason)
	}
	return out
}

func printableChecks(checks []result.Check) []result.Check {
	out := slices.Clone(checks)
	for i := range out {
		c := &out[i]
		c.Name, c.Unit, c.Reason = printable(c.Name, maxReason), printable(c.Unit, maxReason), printable(c.Reason, maxReason)
		c.Kind, c.Verdict = result.CheckKind(printable(string(c.Kind), maxReason)), result.Verdict(printable(string(c.Verdict), maxReason))
	}
	return out
}
