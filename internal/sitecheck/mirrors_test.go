package sitecheck

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sbench/internal/remotetest"
	"sbench/internal/site"
)

func TestRun_Mirrors(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	full, empty := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(full, l.site.Paths.Models), 0o755); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "key")
	_, text := remotetest.NewKey(t)
	if err := os.WriteFile(other, text, 0o600); err != nil {
		t.Fatal(err)
	}
	use := func(root string, change func(*site.Mirror)) string {
		m := site.Mirror(remotetest.Start(t, root).Mirror)
		if change != nil {
			change(&m)
		}
		l.site.Mirrors = append(l.site.Mirrors, m)
		return "mirror " + m.URL
	}
	want := map[string]string{
		use(full, nil):  "pass: has " + l.site.Paths.Models + ", seen from the daemon's host",
		use(empty, nil): "fail: " + filepath.Join(empty, l.site.Paths.Models),
		use(full, func(m *site.Mirror) { m.Key = other }):    "fail: open ",
		use(full, func(m *site.Mirror) { m.Key += ".gone" }): "unknown: ",
	}
	got := l.run(Options{})
	l.expect(got, want)
	n := 0
	for what := range got {
		if strings.HasPrefix(what, "mirror ") {
			n++
		}
	}
	if n != len(want) {
		t.Errorf("%d mirrors were looked at: %v", n, got)
	}
}
