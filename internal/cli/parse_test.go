package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/api"
	"sbench/internal/sweep"
)

func testApp(environ ...string) *app {
	return &app{
		stdin: strings.NewReader(""), stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}, environ: environ,
		now:  func() time.Time { return time.Date(2026, 3, 4, 10, 30, 0, 0, time.UTC) },
		poll: time.Millisecond,
	}
}

func TestTimeLimit(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{
		"90": 90 * time.Minute, "5:30": 5*time.Minute + 30*time.Second, "1:02:03": time.Hour + 2*time.Minute + 3*time.Second,
		"2-3": 51 * time.Hour, "1-0:30": 24*time.Hour + 30*time.Minute, "1-02:03:04": 26*time.Hour + 3*time.Minute + 4*time.Second,
		"": 0, "0": 0, "-1": 0, "1-": 0, "a": 0, "1:2:3:4": 0, "1.5": 0, "400-0": 0, "+5": 0, " 5": 0, "1e3": 0, "99999999999": 0,
	} {
		got, err := timeLimit(in)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("timeLimit(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
}

func TestBeginTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 10, 30, 0, 0, time.UTC)
	for in, want := range map[string]string{
		"now": "2026-03-04T10:30:00Z", "now+1hour": "2026-03-04T11:30:00Z", "now+90": "2026-03-04T10:31:30Z",
		"now+2days": "2026-03-06T10:30:00Z", "tomorrow": "2026-03-05T00:00:00Z", "midnight": "2026-03-05T00:00:00Z",
		"noon": "2026-03-04T12:00:00Z", "09:00": "2026-03-05T09:00:00Z", "16:00:30": "2026-03-04T16:00:30Z",
		"2026-12-24": "2026-12-24T00:00:00Z", "2026-12-24T18:00": "2026-12-24T18:00:00Z", "2026-12-24T18:00:00+02:00": "2026-12-24T18:00:00+02:00",
		"": "", "now+": "", "now+1fortnight": "", "25:00": "", "someday": "", "now-1hour": "",
	} {
		got, err := beginTime(in, now)
		if (err == nil) != (want != "") || err == nil && got.Format(time.RFC3339) != want {
			t.Errorf("beginTime(%q) = %v, %v; want %q", in, got, err, want)
		}
	}
}

func TestDirectives(t *testing.T) {
	t.Parallel()
	lines := []sweep.Directive{
		{Line: 1, Text: "-p gpu --qos=high # the night queue"},
		{Line: 2, Text: ""},
		{Line: 3, Text: `--comment="two words" --set a.b=1,2`},
		{Line: 4, Text: "--set c=3 -H"},
	}
	o, err := testApp().layered("s.yaml", nil, lines, submitFlags(&submitOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	want := submitOptions{partition: "gpu", qos: "high", comment: "two words", hold: true, set: assignments{"a.b=1,2", "c=3"}}
	if diff := cmp.Diff(want, *o, cmp.AllowUnexported(submitOptions{})); diff != "" {
		t.Error(diff)
	}
}

func TestDirectives_Faults(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"--nope":             "unknown flag: --nope",
		"--comment=two more": `unexpected word "more": quote values with blanks`,
		`--comment="open`:    "a quote is not closed",
		"-p":                 "flag needs an argument: 'p' in -p",
		"--help":             "unknown flag: --help",
		"--exclusive=maybe":  `invalid argument "maybe" for "--exclusive" flag: strconv.ParseBool: parsing "maybe": invalid syntax`,
	} {
		_, err := directiveFlags("s.yaml", []byte("# head\n#SBENCH "+line), []sweep.Directive{{Line: 2, Text: line}})
		var f *failure
		if !errors.As(err, &f) || f.status != exitUsage || len(f.diagnostics) != 1 {
			t.Errorf("%s: got %v", line, err)
			continue
		}
		if d := f.diagnostics[0]; d.Line != 2 || d.Message != "#SBENCH: "+want || d.Source != "#SBENCH "+line {
			t.Errorf("%s: got line %d, %q, want %q", line, d.Line, d.Message, want)
		}
	}
}

func TestLayered_Precedence(t *testing.T) {
	t.Parallel()
	lines := []sweep.Directive{{Line: 1, Text: "-p directive -q directive -A directive --set a=1"}}
	a := testApp("SBENCH_PARTITION=environment", "SBENCH_QOS=environment", "SBENCH_SET=b=2 c=3", "SBENCH_EXCLUSIVE=1", "SBENCH_NODELIST=")
	var o submitOptions
	fs := submitFlags(&o)
	if err := fs.Parse([]string{"-p", "line", "--set", "d=4,5", "--nice"}); err != nil {
		t.Fatal(err)
	}
	got, err := a.layered("s.yaml", nil, lines, fs)
	if err != nil {
		t.Fatal(err)
	}
	want := submitOptions{
		partition: "line", qos: "environment", account: "directive", exclusive: true, nice: "100",
		set: assignments{"a=1", "b=2", "c=3", "d=4,5"},
	}
	if diff := cmp.Diff(want, *got, cmp.AllowUnexported(submitOptions{})); diff != "" {
		t.Error(diff)
	}
}

func TestLayered_EnvironmentFaults(t *testing.T) {
	t.Parallel()
	for _, kv := range []string{"SBENCH_EXCLUSIVE=perhaps", "SBENCH_SET=a"} {
		_, err := testApp(kv).layered("s.yaml", nil, nil, submitFlags(&submitOptions{}))
		var f *failure
		if !errors.As(err, &f) || f.status != exitUsage || !strings.HasPrefix(f.message, strings.Split(kv, "=")[0]+": ") {
			t.Errorf("%s: got %v", kv, err)
		}
	}
}

func TestRequest_RefusesWhatHasNoEffect(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--mail-type", "SOMETIMES"},
		{"--max-cost", "-1"},
		{"--max-cost", "cheap"},
		{"--mail-user", "-ada"},
		{"-d", "afterok"},
		{"--repeats", "0"},
		{"--repeats", "x"},
		{"--nice=-5"},
		{"--max-inflight", "0"},
		{"--max-gpu-hours", "-1"},
		{"--max-gpu-hours", "NaN"},
		{"-t", "soon"},
		{"-b", "later"},
		{"--priority", "high"},
	} {
		var o submitOptions
		if err := submitFlags(&o).Parse(args); err != nil {
			t.Fatal(err)
		}
		_, err := o.request(testApp())
		var f *failure
		if !errors.As(err, &f) || f.status != exitUsage {
			t.Errorf("%v: got %v", args, err)
		}
	}
}

func TestRequest(t *testing.T) {
	t.Parallel()
	var o submitOptions
	if err := submitFlags(&o).Parse([]string{"-t", "1:00:00", "-b", "noon", "--repeats", "7", "--mail-type", "fail,begin", "--mail-user", "ada@example.org", "-d", "afterok:1:2", "--max-gpu-hours", "1.5", "--nice"}); err != nil {
		t.Fatal(err)
	}
	got, err := o.request(testApp())
	if err != nil {
		t.Fatal(err)
	}
	limit, repeats, nice, hours, begin := int64(3600), 7, 100, 1.5, time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	want := api.Options{
		TimeLimitS: &limit, Repeats: &repeats, Nice: &nice, MaxGPUHours: &hours, Begin: &begin, Dependency: "afterok:1:2",
		MailType: []string{"BEGIN", "FAIL"}, MailUser: "ada@example.org",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzDirectives(f *testing.F) {
	f.Add("-p gpu --set a=b")
	f.Add("--comment='x # y' # z")
	f.Fuzz(func(t *testing.T, line string) {
		_, err := directiveFlags("s.yaml", []byte(line), []sweep.Directive{{Line: 1, Text: line}})
		var fail *failure
		if err != nil && (!errors.As(err, &fail) || fail.status != exitUsage || len(fail.diagnostics) != 1 || fail.diagnostics[0].Line != 1) {
			t.Errorf("%q: %v", line, err)
		}
	})
}
