package collect_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sbench/internal/collect"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
)

func removeAll(t testing.TB, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rewrite changes the manifest of a sealed folder as an attacker would: the
// digests stay right.
func rewrite(t testing.TB, dir string, change func(m map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, result.ManifestName)
	text, err := os.ReadFile(path)
	must(t, err)
	var m map[string]any
	must(t, json.Unmarshal(text, &m))
	change(m)
	text, err = json.Marshal(m)
	must(t, err)
	must(t, os.WriteFile(path, text, 0o644))
}

func ofAttempt(key string, value any) func(map[string]any) {
	return func(m map[string]any) { m["attempt"].(map[string]any)[key] = value }
}

// TestCollect_Refuses: no such folder is counted, each is reported with its
// kind, and the good attempt beside it is not held up.
func TestCollect_Refuses(t *testing.T) {
	t.Parallel()
	inManifest := func(kind string, change func(map[string]any)) hostile {
		return hostile{kind, func(t testing.TB, _ *lab, dir string) { rewrite(t, dir, change) }}
	}
	cases := map[string]hostile{
		"torn file": {"torn", func(t testing.TB, _ *lab, dir string) {
			must(t, os.Truncate(filepath.Join(dir, result.ResultFile), 10))
		}},
		"missing file": {"torn", func(t testing.TB, _ *lab, dir string) {
			must(t, os.Remove(filepath.Join(dir, result.RunnerLog)))
		}},
		"wrong digest": {"torn", func(t testing.TB, _ *lab, dir string) {
			path := filepath.Join(dir, result.RequestsFile)
			content, err := os.ReadFile(path)
			must(t, err)
			content[len(content)/2] ^= 1
			must(t, os.WriteFile(path, content, 0o644))
		}},
		"symlinked file": {"hostile", func(t testing.TB, _ *lab, dir string) {
			path := filepath.Join(dir, result.RunnerLog)
			must(t, os.Rename(path, path+".real"))
			must(t, os.Symlink(path+".real", path))
		}},
		"symlinked folder": {"hostile", func(t testing.TB, _ *lab, dir string) {
			must(t, os.Rename(dir, dir+"-real"))
			must(t, os.Symlink(dir+"-real", dir))
		}},
		"manifest is a folder": {"hostile", func(t testing.TB, _ *lab, dir string) {
			path := filepath.Join(dir, result.ManifestName)
			must(t, os.Remove(path))
			must(t, os.Mkdir(path, 0o755))
		}},
		"manifest is no JSON": {"hostile", func(t testing.TB, _ *lab, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, result.ManifestName), []byte("{"), 0o644))
		}},
		"oversized file": {"hostile", func(t testing.TB, _ *lab, dir string) {
			must(t, os.Truncate(filepath.Join(dir, result.RunnerLog), 1<<43))
		}},
		"path in a name": inManifest("hostile", func(m map[string]any) {
			m["files"].([]any)[0].(map[string]any)["name"] = "../../../etc/passwd"
		}),
		"another batch":     inManifest("foreign", ofAttempt("token", "sb-bbbbbbbbbbbbbbbbbbbb")),
		"another task":      inManifest("foreign", ofAttempt("task_index", 1)),
		"another setting":   inManifest("foreign", ofAttempt("setting_hash", strings.Repeat("0", 64))),
		"another sweep":     inManifest("foreign", ofAttempt("sweep", 99)),
		"another cluster":   inManifest("foreign", ofAttempt("cluster", "c2")),
		"real hardware":     inManifest("foreign", ofAttempt("hardware_class", "real")),
		"another job":       inManifest("hostile", ofAttempt("job_id_raw", 7)),
		"lost":              inManifest("unreadable", func(m map[string]any) { m["exit_class"] = "lost" }),
		"unknown class":     inManifest("unreadable", func(m map[string]any) { m["exit_class"] = "fine" }),
		"valid, unverified": inManifest("unreadable", func(m map[string]any) { m["env_verified"] = false }),
		"ends before start": inManifest("unreadable", ofAttempt("ended_at", "2020-01-01T00:00:00Z")),
		"nodes with blanks": inManifest("unreadable", ofAttempt("nodes", []string{"n1 n2"})),
		"no nodes":          inManifest("unreadable", ofAttempt("nodes", []string{})),
		"validity differs":  inManifest("unreadable", func(m map[string]any) { m["valid"] = false }),
		"no result file": inManifest("unreadable", func(m map[string]any) {
			var kept []any
			for _, f := range m["files"].([]any) {
				if f.(map[string]any)["name"] != result.ResultFile {
					kept = append(kept, f)
				}
			}
			m["files"] = kept
		}),
		"a result of 65 MB": {"hostile", func(t testing.TB, _ *lab, dir string) {
			must(t, os.Truncate(filepath.Join(dir, result.ResultFile), 65<<20))
			rewrite(t, dir, func(m map[string]any) {
				for _, f := range m["files"].([]any) {
					if file := f.(map[string]any); file["name"] == result.ResultFile {
						file["size"] = 65 << 20
					}
				}
			})
		}},
		"result is no Parquet": {"unreadable", func(t testing.TB, _ *lab, dir string) {
			content := []byte("PAR1 nonsense PAR1")
			must(t, os.WriteFile(filepath.Join(dir, result.ResultFile), content, 0o644))
			sum := sha256.Sum256(content)
			rewrite(t, dir, func(m map[string]any) {
				for _, f := range m["files"].([]any) {
					if file := f.(map[string]any); file["name"] == result.ResultFile {
						file["size"], file["sha256"] = len(content), hex.EncodeToString(sum[:])
					}
				}
			})
		}},
	}
	names := slices.Sorted(maps.Keys(cases))
	l := newLab(t, len(cases)+1, 1)
	for i, name := range names {
		cases[name].do(t, l, l.measured(l.runs[i], 100))
	}
	l.measured(l.runs[len(cases)], 100)
	if got := l.tick(); got.Ingested != 1 || got.Refused != len(cases) {
		t.Errorf("tick %+v, want one good and %d bad ones", got, len(cases))
	}
	if got := l.tick(); got != (collect.Report{}) {
		t.Errorf("looked again at once: %+v", got)
	}
	for i, name := range names {
		run := l.runs[i]
		if got := l.state(run); got != lifecycle.RunSubmitted {
			t.Errorf("%s: run is %s", name, got)
		}
		rejected, err := l.store.RejectedAttempts(t.Context(), run)
		must(t, err)
		if len(rejected) != 1 || rejected[0].Kind != cases[name].kind || rejected[0].Reason == "" {
			t.Errorf("%s: rejected %+v, want one of kind %s", name, rejected, cases[name].kind)
		}
	}
}

// TestCollect_ForeignOwner works also where the tests may not give files away:
// the batch ran as somebody else.
func TestCollect_ForeignOwner(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 2)
	l.measured(l.runs[0], 100)
	if os.Geteuid() == 0 {
		// One file of a stranger is enough.
		must(t, os.Chown(filepath.Join(l.measured(l.runs[1], 101), result.RunnerLog), 65534, 65534))
		if got := l.tick(); got.Ingested != 1 || got.Refused != 1 {
			t.Errorf("tick %+v", got)
		}
		return
	}
	l.exec(`update batch set uid = uid + 1`)
	if got := l.tick(); got.Ingested != 0 || got.Refused != 1 {
		t.Errorf("tick %+v", got)
	}
}

// hostile is what is done to a good folder, and what that is called.
type hostile struct {
	kind string
	do   func(t testing.TB, l *lab, dir string)
}

// TestCollect_TornThenWhole: a folder that becomes whole is ingested, and no
// complaint is left.
func TestCollect_TornThenWhole(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 1)
	dir := l.measured(l.runs[0], 100)
	log := filepath.Join(dir, result.RunnerLog)
	must(t, os.Rename(log, dir+".elsewhere"))
	if got := l.tick(); got.Ingested != 0 || got.Refused != 1 {
		t.Errorf("tick %+v", got)
	}
	must(t, os.Rename(dir+".elsewhere", log))
	if got := l.tick(); got.Ingested != 1 || got.Settled != 1 {
		t.Errorf("tick %+v", got)
	}
	if l.count("rejected_attempt") != 0 {
		t.Error("the complaint stays")
	}
}

// TestCollect_Unsealed: what is not sealed does not exist, and is no fault yet.
func TestCollect_Unsealed(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 1)
	must(t, os.MkdirAll(filepath.Join(l.attempts, "1", "100-r0"), 0o755))
	must(t, os.MkdirAll(filepath.Join(l.attempts, "1", ".101-r0.123.partial"), 0o755))
	must(t, os.MkdirAll(filepath.Join(l.attempts, "999", "100-r0"), 0o755))
	l.tick()
	if l.count("attempt") != 0 || l.count("rejected_attempt") != 0 {
		t.Error("something was made of it")
	}
}

// TestCollect_ControlCharacters: what a terminal or PostgreSQL would choke on is
// kept as blanks, and the attempt counts.
func TestCollect_ControlCharacters(t *testing.T) {
	t.Parallel()
	l := newLab(t, 1, 1)
	m := l.manifest(l.runs[0], 100, lifecycle.ExitDriftArtefact)
	m.Reasons = []string{"bad\x00 \x1b[31mred\xff", "second"}
	m.Checks = []result.Check{{Name: "digest", Kind: result.CheckEnvironment, Verdict: result.VerdictFail, Reason: "nul \x00"}}
	l.seal(m, nil)
	if got := l.tick(); got.Ingested != 1 {
		t.Fatalf("tick %+v", got)
	}
	var reasons []string
	l.query(`select reasons from attempt`, &reasons)
	if reasons[0] != "bad  [31mred\uFFFD" && reasons[0] != "bad   [31mred\uFFFD" {
		t.Errorf("reasons %q", reasons)
	}
}

// TestCollect_AbsurdValues: numbers that no run can have are refused; they would make
// the summary of everything beside them infinite.
func TestCollect_AbsurdValues(t *testing.T) {
	t.Parallel()
	at := func(v float64) *float64 { return &v }
	cases := []struct {
		name   string
		metric string
		value  *float64
	}{
		{"infinite", "ttft_p50", at(math.Inf(1))},
		{"no number", "ttft_p50", at(math.NaN())},
		{"negative", "ttft_p99", at(-5)},
		{"huge", "output_tokens_per_s", at(1e200)},
		{"largest", "output_tokens_per_s", at(math.MaxFloat64)},
	}
	l := newLab(t, 1, len(cases)+2)
	for i, tt := range cases {
		l.seal(l.manifest(l.runs[i], 100, lifecycle.ExitMeasured), func(int) int64 { return 40 }, func(r *result.Result) { r.Metrics[tt.metric] = tt.value })
	}
	ahead := l.manifest(l.runs[len(cases)], 100, lifecycle.ExitMeasured)
	ahead.Attempt.StartedAt, ahead.Attempt.EndedAt = time.Now().Add(48*time.Hour), time.Now().Add(49*time.Hour)
	l.seal(ahead, func(int) int64 { return 40 })
	l.measured(l.runs[len(cases)+1], 100)
	if got := l.tick(); got.Ingested != 1 || got.Refused != len(cases)+1 {
		t.Errorf("tick %+v", got)
	}
	for i, tt := range append(cases, struct {
		name   string
		metric string
		value  *float64
	}{name: "of the day after tomorrow"}) {
		rejected, err := l.store.RejectedAttempts(t.Context(), l.runs[i])
		must(t, err)
		if len(rejected) != 1 || rejected[0].Kind != "unreadable" {
			t.Errorf("%s: %+v", tt.name, rejected)
		}
	}
}

// TestCollect_AbsurdScores: a total that no evaluation gives is refused; without one,
// and with a true one, the attempt counts.
func TestCollect_AbsurdScores(t *testing.T) {
	t.Parallel()
	at := func(v float64) *float64 { return &v }
	cases := []struct {
		name                 string
		score, items, scored *float64
		good                 bool
	}{
		{"above 1", at(87), at(3), at(3), false},
		{"items without a score", at(0.5), at(3), at(2), false},
		{"of how many items", at(0.5), nil, nil, false},
		{"of no item", at(0.5), at(0), at(0), false},
		{"of three items", at(0.5), at(3), at(3), true},
		{"none", nil, at(3), at(2), true},
	}
	l := newLab(t, 1, len(cases))
	good := 0
	for i, tt := range cases {
		if tt.good {
			good++
		}
		l.seal(l.manifest(l.runs[i], 100, lifecycle.ExitMeasured), func(int) int64 { return 40 }, func(r *result.Result) {
			r.Metrics = maps.Clone(r.Metrics) // the load point has them, too
			r.Metrics["quality_score"], r.Metrics["quality_items"], r.Metrics["quality_scored"] = tt.score, tt.items, tt.scored
		})
	}
	if got := l.tick(); got.Ingested != good || got.Refused != len(cases)-good {
		t.Errorf("tick %+v", got)
	}
	for i, tt := range cases {
		rejected, err := l.store.RejectedAttempts(t.Context(), l.runs[i])
		must(t, err)
		if (len(rejected) == 0) != tt.good {
			t.Errorf("%s: %+v", tt.name, rejected)
		}
	}
}

// TestCollect_AbsurdFingerprints: what the database cannot keep holds up nothing.
func TestCollect_AbsurdFingerprints(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 9900) + strings.Repeat("]", 9900)
	for name, text := range map[string]string{
		"nested deeply": `{"version":1,"x":` + deep + `}`,
		"huge":          `{"version":1,"x":"` + strings.Repeat("x", 9<<20) + `"}`,
		"no JSON":       `{"version":1`,
		"huge number":   `{"version":1,"x":1e999999}`,
		"zero byte":     `{"version":1,"x":"\u0000"}`,
	} {
		l := newLab(t, 1, 2)
		l.requests = 20
		l.seal(l.manifest(l.runs[0], 100, lifecycle.ExitMeasured), func(int) int64 { return 40 }, func(r *result.Result) { r.Fingerprint = []byte(text) })
		l.measured(l.runs[1], 100)
		got := l.tick()
		if name == "nested deeply" { // the database takes it as it is
			if got.Ingested != 2 {
				t.Errorf("%s: tick %+v", name, got)
			}
			continue
		}
		if got.Ingested != 1 || got.Refused != 1 {
			t.Errorf("%s: tick %+v", name, got)
		}
		rejected, err := l.store.RejectedAttempts(t.Context(), l.runs[0])
		must(t, err)
		if len(rejected) != 1 || rejected[0].Kind != "unreadable" {
			t.Errorf("%s: %+v", name, rejected)
		}
	}
}

// TestCollect_FolderAway: a site whose file system is away holds up no other, what is
// there is summed up, and nobody is told that everything was looked at.
func TestCollect_FolderAway(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2, 1)
	l.measured(l.runs[0], 100)
	notDir := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(notDir, nil, 0o644))
	const other = "sb-cccccccccccccccccccc"
	l.exec(`insert into batch (token, site, cluster, uid, user_name, dir, attempts_dir, digest, time_limit_s, n_tasks, created_at, state, actor, changed_at)
select $1, 'away', cluster, uid, user_name, dir, $2, digest, time_limit_s, n_tasks, created_at, state, actor, changed_at from batch`, other, filepath.Join(notDir, "attempts"))
	l.exec(`insert into task (token, task_index, time_limit_s, state, actor, changed_at) values ($1, 0, 60, 'waiting', 'submit', now())`, other)
	l.exec(`update run set state = 'pending', actor = 'track', changed_at = now() where id = $1`, l.runs[1])
	l.exec(`update run set state = 'submitted', actor = 'submit', changed_at = now(), batch_token = $1, task_index = 0 where id = $2`, other, l.runs[1])
	got, err := l.collect.Tick(t.Context())
	if err == nil || !strings.Contains(err.Error(), "attempts folder") {
		t.Errorf("nobody is told: %v", err)
	}
	if got.Ingested != 1 || got.Settled != 1 || !l.collect.Looked().IsZero() {
		t.Errorf("%+v, looked at %v", got, l.collect.Looked())
	}
	must(t, os.Remove(notDir))
	if got := l.tick(); got.Ingested != 0 || l.collect.Looked().IsZero() {
		t.Errorf("%+v, looked at %v", got, l.collect.Looked())
	}
}

// TestCollect_PoisonSetting: a setting that cannot be summed up holds up no other.
func TestCollect_PoisonSetting(t *testing.T) {
	t.Parallel()
	l := newLab(t, 3, 1)
	for _, r := range l.runs {
		l.measured(r, 100)
	}
	l.exec(`update sweep_setting set repeats_max = 10, adding = 'open' where setting_hash = $1`, l.hashes[0]) // and there is no policy
	if got := l.tick(); got.Ingested != 3 || got.Settled != 2 {
		t.Errorf("%+v", got)
	}
}

// TestKindOf: what a file system says for a while gives nothing up for ever.
func TestKindOf(t *testing.T) {
	t.Parallel()
	for _, number := range []syscall.Errno{syscall.ESTALE, syscall.EIO, syscall.EACCES, syscall.EMFILE, syscall.ENOMEM, syscall.ETIMEDOUT} {
		err := fmt.Errorf("attempt x: %w", &os.PathError{Op: "read", Path: "result.parquet", Err: number})
		if got := collect.KindOf(err); got != "torn" {
			t.Errorf("%v is %s", err, got)
		}
	}
	if got := collect.KindOf(errors.New("no such column")); got != "unreadable" {
		t.Errorf("%s", got)
	}
}
