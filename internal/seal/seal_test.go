package seal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sbench/internal/lifecycle"
	"sbench/internal/result"
)

var attempt = result.Attempt{RunID: 7, JobIDRaw: 4711, RestartCount: 1, Cluster: "c", HardwareClass: "emulated"}

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

func write(t *testing.T, attempts string) *Writer {
	t.Helper()
	w, err := Create(Dir(attempts, 7, 4711, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteFile("result.parquet", text("result")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.Path("engine.log"), []byte("log"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := w.Adopt("engine.log"); err != nil {
		t.Fatal(err)
	}
	return w
}

func sealed(t *testing.T) string {
	t.Helper()
	w := write(t, t.TempDir())
	if _, err := w.Seal(result.Manifest{Attempt: attempt, ExitClass: lifecycle.ExitMeasured}); err != nil {
		t.Fatal(err)
	}
	return w.Dir()
}

func TestWriter_SealAndVerify(t *testing.T) {
	t.Parallel()
	attempts := t.TempDir()
	w := write(t, attempts)
	dir := w.Dir()
	if err := os.WriteFile(w.Path("stranger"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(dir, DefaultLimits()); !errors.Is(err, ErrUnsealed) {
		t.Errorf("before sealing: %v, want ErrUnsealed", err)
	}
	if diff := cmp.Diff([]string{filepath.Dir(w.Path("x"))}, Partials(dir)); diff != "" {
		t.Errorf("partials (-want +got):\n%s", diff)
	}
	wrote, err := w.Seal(result.Manifest{Attempt: attempt, ExitClass: lifecycle.ExitMeasured, Reasons: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Verify(dir, DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wrote, got); diff != "" {
		t.Errorf("manifest (-wrote +read):\n%s", diff)
	}
	if len(got.Files) != 2 || got.Files[0].Name != "engine.log" || got.Files[1].Size != 6 {
		t.Errorf("files: %+v", got.Files)
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(entries) != 1 {
		t.Errorf("the run's folder holds %v (%v), want the attempt alone", entries, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "stranger")); !os.IsNotExist(err) {
		t.Error("a file that the manifest does not name was sealed")
	}
	s, err := Open(dir, DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if b, err := s.Read("result.parquet"); err != nil || string(b) != "result" {
		t.Errorf("read: %q, %v", b, err)
	}
	if _, err := s.Read("window.parquet"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("read of a file that is not there: %v", err)
	}
}

func TestWriter_NeverOverwrites(t *testing.T) {
	t.Parallel()
	attempts := t.TempDir()
	first, second := write(t, attempts), write(t, attempts)
	if _, err := first.Seal(result.Manifest{Attempt: attempt, ExitClass: lifecycle.ExitMeasured}); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Seal(result.Manifest{Attempt: attempt, ExitClass: lifecycle.ExitInternal}); !errors.Is(err, ErrSealed) {
		t.Errorf("second seal: %v, want ErrSealed", err)
	}
	if err := second.Abort(); err != nil {
		t.Error(err)
	}
	if _, err := Create(first.Dir()); !errors.Is(err, ErrSealed) {
		t.Errorf("create over a sealed attempt: %v, want ErrSealed", err)
	}
	if m, err := Verify(first.Dir(), DefaultLimits()); err != nil || m.ExitClass != lifecycle.ExitMeasured {
		t.Errorf("after all that: %v, %v", m.ExitClass, err)
	}
}

func TestWriter_OneOfManyWins(t *testing.T) {
	t.Parallel()
	attempts := t.TempDir()
	var wg sync.WaitGroup
	writers := make([]*Writer, 16)
	for i := range writers {
		writers[i] = write(t, attempts)
	}
	errs := make([]error, len(writers))
	for i, w := range writers {
		wg.Go(func() {
			_, errs[i] = w.Seal(result.Manifest{Attempt: attempt, Reasons: []string{fmt.Sprint(i)}})
		})
	}
	wg.Wait()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner < 0:
			winner = i
		case err == nil:
			t.Errorf("both %d and %d sealed", winner, i)
		case !errors.Is(err, ErrSealed):
			t.Error(err)
		}
	}
	m, err := Verify(Dir(attempts, 7, 4711, 1), DefaultLimits())
	if err != nil || m.Reasons[0] != fmt.Sprint(winner) {
		t.Errorf("sealed %v, %v; the winner is %d", m.Reasons, err, winner)
	}
}

func TestWriter_FailedWriteLeavesNoFile(t *testing.T) {
	t.Parallel()
	w := write(t, t.TempDir())
	fault := errors.New("no space left on device")
	err := w.WriteFile("requests.parquet", func(out io.Writer) error {
		_, _ = io.WriteString(out, strings.Repeat("x", 1<<20))
		return fault
	})
	if !errors.Is(err, fault) {
		t.Fatalf("got %v", err)
	}
	m, err := w.Seal(result.Manifest{Attempt: attempt, ExitClass: lifecycle.ExitInternal})
	if err != nil || len(m.Files) != 2 {
		t.Errorf("seal after a failed write: %v, %v", m.Files, err)
	}
	if _, err := Verify(w.Dir(), DefaultLimits()); err != nil {
		t.Error(err)
	}
}

func TestWriter_RefusesNames(t *testing.T) {
	t.Parallel()
	w := write(t, t.TempDir())
	for _, name := range []string{"", ".", "..", ".hidden", "a/b", "../x", "manifest.json", "a\x00", "ü", strings.Repeat("a", 65), "engine.log"} {
		if err := w.Adopt(name); err == nil {
			t.Errorf("adopted %q", name)
		}
	}
}

// TestVerify_Faults damages a sealed attempt in one way each.
func TestVerify_Faults(t *testing.T) {
	t.Parallel()
	manifest := func(t *testing.T, dir string, change func(m map[string]any)) {
		t.Helper()
		path := filepath.Join(dir, result.ManifestName)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		if b, err = json.Marshal(m); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	must := func(t *testing.T, errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	firstFile := func(m map[string]any) map[string]any { return m["files"].([]any)[0].(map[string]any) }
	tests := []struct {
		name   string
		damage func(t *testing.T, dir string)
		limits func(*Limits)
		want   error
	}{
		{"file missing", func(t *testing.T, d string) { must(t, os.Remove(filepath.Join(d, "result.parquet"))) }, nil, ErrTorn},
		{"file short", func(t *testing.T, d string) { must(t, os.Truncate(filepath.Join(d, "result.parquet"), 3)) }, nil, ErrTorn},
		{"file long", func(t *testing.T, d string) { must(t, os.Truncate(filepath.Join(d, "result.parquet"), 7)) }, nil, ErrTorn},
		{"byte flipped", func(t *testing.T, d string) {
			must(t, os.WriteFile(filepath.Join(d, "result.parquet"), []byte("resulT"), 0o644))
		}, nil, ErrTorn},
		{"no manifest", func(t *testing.T, d string) { must(t, os.Remove(filepath.Join(d, "manifest.json"))) }, nil, ErrUnsealed},
		{"no folder", func(t *testing.T, d string) { must(t, os.RemoveAll(d)) }, nil, ErrUnsealed},
		{"no run folder", func(t *testing.T, d string) { must(t, os.RemoveAll(filepath.Dir(d))) }, nil, ErrUnsealed},
		{"file is a link", func(t *testing.T, d string) {
			f := filepath.Join(d, "result.parquet")
			must(t, os.Rename(f, f+".x"), os.Symlink(f+".x", f))
		}, nil, ErrHostile},
		{"file is a FIFO", func(t *testing.T, d string) {
			f := filepath.Join(d, "result.parquet")
			must(t, os.Remove(f), unix.Mkfifo(f, 0o644))
		}, nil, ErrHostile},
		{"file is a folder", func(t *testing.T, d string) {
			f := filepath.Join(d, "result.parquet")
			must(t, os.Remove(f), os.Mkdir(f, 0o755))
		}, nil, ErrHostile},
		{"manifest is a link", func(t *testing.T, d string) {
			f := filepath.Join(d, "manifest.json")
			must(t, os.Rename(f, f+".x"), os.Symlink("manifest.json.x", f))
		}, nil, ErrHostile},
		{"manifest is a FIFO", func(t *testing.T, d string) {
			f := filepath.Join(d, "manifest.json")
			must(t, os.Remove(f), unix.Mkfifo(f, 0o644))
		}, nil, ErrHostile},
		{"folder is a link", func(t *testing.T, d string) { must(t, os.Rename(d, d+".x"), os.Symlink(d+".x", d)) }, nil, ErrHostile},
		{"run folder is a link", func(t *testing.T, d string) {
			up := filepath.Dir(d)
			must(t, os.Rename(up, up+".x"), os.Symlink(up+".x", up))
		}, nil, ErrHostile},
		{"another attempt's folder", func(t *testing.T, d string) {
			manifest(t, d, func(m map[string]any) { m["attempt"].(map[string]any)["run_id"] = 8 })
		}, nil, ErrHostile},
		{"manifest half written", func(t *testing.T, d string) { must(t, os.Truncate(filepath.Join(d, "manifest.json"), 50)) }, nil, ErrHostile},
		{"manifest empty", func(t *testing.T, d string) { must(t, os.Truncate(filepath.Join(d, "manifest.json"), 0)) }, nil, ErrHostile},
		{"manifest too large", func(t *testing.T, d string) { must(t, os.Truncate(filepath.Join(d, "manifest.json"), 9<<20)) }, nil, ErrHostile},
		{"later version", func(t *testing.T, d string) { manifest(t, d, func(m map[string]any) { m["version"] = 99 }) }, nil, ErrHostile},
		{"name climbs", func(t *testing.T, d string) {
			manifest(t, d, func(m map[string]any) { firstFile(m)["name"] = "../../7/4711-r1/engine.log" })
		}, nil, ErrHostile},
		{"named twice", func(t *testing.T, d string) {
			manifest(t, d, func(m map[string]any) { m["files"] = append(m["files"].([]any), firstFile(m)) })
		}, nil, ErrHostile},
		{"size negative", func(t *testing.T, d string) { manifest(t, d, func(m map[string]any) { firstFile(m)["size"] = -1 }) }, nil, ErrHostile},
		{"no digest", func(t *testing.T, d string) { manifest(t, d, func(m map[string]any) { firstFile(m)["sha256"] = "" }) }, nil, ErrHostile},
		{"file beyond the limit", func(*testing.T, string) {}, func(l *Limits) { l.FileBytes = 4 }, ErrHostile},
		{"total beyond the limit", func(*testing.T, string) {}, func(l *Limits) { l.TotalBytes = 8 }, ErrHostile},
		{"too many files", func(*testing.T, string) {}, func(l *Limits) { l.Files = 1 }, ErrHostile},
		{"foreign owner", func(*testing.T, string) {}, func(l *Limits) { uid := os.Getuid() + 1; l.UID = &uid }, ErrHostile},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := sealed(t)
			limits := DefaultLimits()
			uid := os.Getuid()
			limits.UID = &uid
			if _, err := Verify(dir, limits); err != nil {
				t.Fatalf("undamaged: %v", err)
			}
			tt.damage(t, dir)
			if tt.limits != nil {
				tt.limits(&limits)
			}
			if _, err := Verify(dir, limits); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(`{"version":1,"attempt":{"run_id":7,"job_id_raw":4711,"restart_count":1},"files":[{"name":"a","size":1,"sha256":"00"}]}`))
	f.Add([]byte(`{"files":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseManifest(b, "/a/7/4711-r1", DefaultLimits())
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if !plainName(file.Name) || file.Size < 0 {
				t.Errorf("accepted %+v", file)
			}
		}
	})
}
