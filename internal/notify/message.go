package notify

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sbench/internal/lifecycle"
	"sbench/internal/mail"
	"sbench/internal/store"
)

const mostReasons = 5 // of a mail

// message says what became of a sweep.
func (s *Service) message(ctx context.Context, m store.Mail) (mail.Message, error) {
	v, err := s.Store.SweepView(ctx, m.SweepID)
	if err != nil {
		return mail.Message{}, err
	}
	reasons, err := s.Store.SettingReasons(ctx, m.SweepID)
	if err != nil {
		return mail.Message{}, err
	}
	to := m.To
	if s.Domain != "" && !strings.Contains(to, "@") {
		to += "@" + s.Domain
	}
	return mail.Message{
		From: s.From, To: to, Date: s.Now(),
		Subject: fmt.Sprintf("sbench: sweep %d (%s) %s", v.ID, v.Name, headline(m, v)),
		ID:      fmt.Sprintf("sbench.%d.%s.%d.%d@%s", m.SweepID, strings.ToLower(m.Event), m.Occurrence, v.SubmittedAt.Unix(), s.host),
		Body:    body(m, v, reasons),
	}, nil
}

func headline(m store.Mail, v store.SweepView) string {
	switch m.Event {
	case "BEGIN":
		return "has begun"
	case "REQUEUE":
		return "goes on: runs were requeued"
	case "INVALID_DEPEND":
		return "is cancelled: its dependency can never be satisfied"
	}
	switch m.SweepState {
	case store.SweepComplete:
		return "is complete"
	case store.SweepIncomplete:
		return fmt.Sprintf("is incomplete: %d of %d settings are complete", v.SettingsComplete, v.NSettings)
	case store.SweepCancelled:
		return "is cancelled"
	case store.SweepActive:
	}
	return "has ended"
}

func body(m store.Mail, v store.SweepView, reasons []store.SettingReason) string {
	var b strings.Builder
	line := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-11s %s\n", key, value)
		}
	}
	fmt.Fprintf(&b, "Sweep %d (%s) %s.\n\n", v.ID, v.Name, headline(m, v))
	line("user", v.UserName)
	line("account", v.Account)
	line("site", v.Site+" ("+v.HardwareClass+" hardware)")
	line("submitted", clock(&v.SubmittedAt))
	line("ended", clock(v.EndedAt))
	line("settings", fmt.Sprintf("%d, %d final, %d complete", v.NSettings, v.SettingsFinal, v.SettingsComplete))
	var counts []string
	for _, state := range []lifecycle.RunState{
		lifecycle.RunPending, lifecycle.RunSubmitted, lifecycle.RunProvisioning, lifecycle.RunRunning, lifecycle.RunComplete, lifecycle.RunFailed,
		lifecycle.RunDead, lifecycle.RunCancelled, lifecycle.RunSkipped,
	} {
		if n := v.RunsByState[state]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	line("runs", strings.Join(counts, ", "))
	line("dependency", v.Dependency)
	if v.DependencyState == store.DependencyNever {
		line("reason", v.DependencyReason)
	}
	if len(reasons) > 0 {
		b.WriteString("\nWhy runs are missing:\n")
		for _, r := range reasons[:min(len(reasons), mostReasons)] {
			fmt.Fprintf(&b, "  setting %.12s, %d runs: %s\n", r.SettingHash, r.N, plain(r.Reason))
		}
		if more := len(reasons) - mostReasons; more > 0 {
			fmt.Fprintf(&b, "  and %d more\n", more)
		}
	}
	fmt.Fprintf(&b, "\n  sbench show sweep %[1]d\n  sbench results %[1]d\n", v.ID)
	return b.String()
}

// plain is one line without control characters: reasons come from the nodes.
func plain(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
	if r := []rune(text); len(r) > 300 {
		text = string(r[:300]) + "…"
	}
	return text
}

func clock(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 MST")
}
