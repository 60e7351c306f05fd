package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sbench/internal/api"
)

// outage is how long a daemon that does not answer is waited for: a restart
// must not end everybody's --wait.
const outage = 5 * time.Minute

// awaitSweep blocks until every run of the sweep has ended and every setting is
// final, showing progress on stderr: a bar on a terminal, else one line per
// change. When ctx ends it says that the sweep goes on.
func (a *app) awaitSweep(ctx context.Context, c *api.Client, sweep int64) (api.SweepSummary, error) {
	p := newProgress(a)
	defer p.close()
	var lost time.Time
	for {
		s, err := c.Summary(ctx, sweep)
		var unreachable *api.UnreachableError
		switch {
		case err == nil:
			lost = time.Time{}
			p.show(s)
			if s.Terminal() {
				return s, nil
			}
		case ctx.Err() != nil:
		case errors.As(err, &unreachable) || isUnavailable(err):
			if lost.IsZero() {
				lost = a.now()
				p.say("the daemon does not answer; waiting for it")
			}
			if a.now().Sub(lost) > outage {
				return s, err
			}
		default:
			return s, err
		}
		select {
		case <-ctx.Done():
			p.close()
			return s, &failure{
				status: exitFailed, message: fmt.Sprintf("stopped waiting; sweep %d goes on", sweep),
				hint: fmt.Sprintf("sbench watch %d shows it, sbench cancel %d ends it", sweep, sweep), err: ctx.Err(),
			}
		case <-time.After(a.poll):
		}
	}
}

func isUnavailable(err error) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Code == api.CodeUnavailable
}

// progress shows a sweep's way on stderr.
type progress struct {
	w        io.Writer
	terminal bool
	quiet    bool
	last     string
	now      func() time.Time
}

func newProgress(a *app) *progress {
	return &progress{w: a.stderr, terminal: isTerminal(a.stderr) && a.env("TERM") != "dumb", quiet: a.json, now: a.now}
}

func (p *progress) show(s api.SweepSummary) {
	if p.quiet {
		return
	}
	line := progressLine(s)
	if !p.terminal {
		if line != p.last {
			_, _ = fmt.Fprintf(p.w, "sbench: sweep %d: %s\n", s.ID, line)
		}
		p.last = line
		return
	}
	if s.ETA != nil && !s.Terminal() {
		line += ", about " + span(s.ETA.Sub(p.now())) + " left"
	}
	text := fmt.Sprintf("sweep %d %s %s", s.ID, bar(s.RunsTotal-s.RunsOpen(), s.RunsTotal, 24), line)
	if width := terminalWidth(p.w); width > 1 {
		if r := []rune(text); len(r) >= width {
			text = string(r[:width-1])
		}
	}
	if text != p.last {
		_, _ = fmt.Fprintf(p.w, "\r\x1b[K%s", text)
		p.last = text
	}
}

func (p *progress) say(text string) {
	if p.quiet {
		return
	}
	if p.terminal {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
		p.last = ""
	}
	_, _ = fmt.Fprintf(p.w, "sbench: %s\n", text)
}

// close ends the bar's line. It may be called twice.
func (p *progress) close() {
	if p.terminal && p.last != "" {
		_, _ = fmt.Fprintln(p.w)
		p.last = ""
	}
}

func progressLine(s api.SweepSummary) string {
	parts := []string{fmt.Sprintf("%d/%d runs ended", s.RunsTotal-s.RunsOpen(), s.RunsTotal)}
	for _, x := range []struct {
		n    int
		word string
	}{
		{s.Runs["failed"] + s.Runs["dead"], "failed or refused"},
		{s.Runs["cancelled"], "cancelled"},
		{s.Runs["running"] + s.Runs["provisioning"], "running"},
		{s.Runs["pending"] + s.Runs["submitted"], "waiting"},
	} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.word))
		}
	}
	return strings.Join(append(parts, fmt.Sprintf("%d/%d settings final", s.SettingsFinal, s.SettingsTotal)), ", ")
}

// bar draws how much of the whole is done.
func bar(done, total, width int) string {
	filled := 0
	if total > 0 {
		filled = width * done / total
	}
	return "[" + strings.Repeat("█", filled) + strings.Repeat("·", width-filled) + "]"
}
