package batch

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/setting"
)

func spec() *Spec {
	return &Spec{
		Version: Version, Token: "sb-abcdefghij2345672345", Site: "lab", Cluster: "lab", HardwareClass: "emulated", UID: 1000,
		AttemptsDir: "/results/attempts", CacheDir: "/tmp/cache",
		Settings: map[string]setting.Setting{"h1": {}, "h2": {}},
		Tasks: []Task{
			{Index: 0, Runs: []Run{{ID: 1, SettingHash: "h1", TimeLimit: time.Minute}, {ID: 2, SettingHash: "h2", TimeLimit: time.Minute}}},
			{Index: 1, Runs: []Run{{ID: 3, SettingHash: "h1", Repeat: 1, TimeLimit: time.Minute}}},
		},
	}
}

func TestSpec_RoundTrip(t *testing.T) {
	data, digest, err := Encode(spec())
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(data, digest)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(spec(), got); diff != "" {
		t.Error(diff)
	}
	again, digest2, err := Encode(got)
	if err != nil || digest != digest2 || string(again) != string(data) {
		t.Errorf("encoded again: %v, %s", err, cmp.Diff(string(data), string(again)))
	}
}

func TestDecode_Refuses(t *testing.T) {
	data, digest, err := Encode(spec())
	if err != nil {
		t.Fatal(err)
	}
	changed := []byte(strings.Replace(string(data), "emulated", "real", 1))
	future := []byte(strings.Replace(string(data), `"version": 1`, `"version": 2`, 1))
	unknown := []byte(strings.Replace(string(data), `"version": 1`, `"surprise": 2, "version": 1`, 1))
	for name, tt := range map[string]struct {
		data   []byte
		digest string
	}{
		"changed": {changed, digest}, "cut": {data[:100], digest}, "cut, with its digest": {data[:100], Digest(data[:100])}, "empty": {nil, Digest(nil)},
		"a later version": {future, Digest(future)}, "an unknown field": {unknown, Digest(unknown)}, "no digest": {data, ""},
	} {
		if s, err := Decode(tt.data, tt.digest); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
}

func TestSpec_Validate(t *testing.T) {
	for name, edit := range map[string]func(*Spec){
		"token":                     func(s *Spec) { s.Token = "sb-x'; rm -rf /" },
		"relative results":          func(s *Spec) { s.AttemptsDir = "results" },
		"no tasks":                  func(s *Spec) { s.Tasks = nil },
		"task without runs":         func(s *Spec) { s.Tasks[0].Runs = nil },
		"index is not the position": func(s *Spec) { s.Tasks[1].Index = 5 },
		"a run twice":               func(s *Spec) { s.Tasks[1].Runs[0].ID = 1 },
		"two repeats in a task":     func(s *Spec) { s.Tasks[0].Runs[1].SettingHash = "h1" },
		"an unknown setting":        func(s *Spec) { s.Tasks[0].Runs[1].SettingHash = "h3" },
		"a mirror with a password": func(s *Spec) {
			s.Node.Mirrors = []Mirror{{URL: "sftp://u:p@h/b", Key: "/k", KnownHosts: "/h"}}
		},
		"a mirror with a relative key": func(s *Spec) {
			s.Node.Mirrors = []Mirror{{URL: "sftp://u@h/b", Key: "k", KnownHosts: "/h"}}
		},
		"a run without a time limit": func(s *Spec) { s.Tasks[0].Runs[1].TimeLimit = 0 },
	} {
		s := spec()
		edit(s)
		if _, _, err := Encode(s); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewToken(t *testing.T) {
	a := NewToken([TokenBytes]byte{1, 2, 3})
	b := NewToken([TokenBytes]byte{1, 2, 4})
	if !IsToken(a) || !IsToken(b) || a == b {
		t.Errorf("%s %s", a, b)
	}
	if IsToken("sb-ABCDEFGHIJ2345672345") || IsToken("sb-abc") || IsToken(a+"a") || IsToken(a+"\n") {
		t.Error("what is no token is taken for one")
	}
}

func TestParseRecord(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0).UTC() }
	text := "100 begin gpu1\n101 claim held\n102 start 7\n130 end 7 0\n131 start 8\n160 end 8 10\n161 skip 9 time\n162 done\n"
	want := Record{
		Begun: at(100), Node: "gpu1", Claim: "held", Done: at(162),
		Runs: []RunRecord{{Run: 7, Started: at(102), Ended: at(130)}, {Run: 8, Started: at(131), Ended: at(160), Exit: 10}, {Run: 9, Reason: "time"}},
	}
	if diff := cmp.Diff(want, ParseRecord([]byte(text))); diff != "" {
		t.Error(diff)
	}
	// A line is written at once; a half one is not read.
	cut := ParseRecord([]byte("100 begin gpu1\n101 claim held\n102 start 7\n130 end 7 1"))
	if len(cut.Runs) != 1 || !cut.Runs[0].Ended.IsZero() || !cut.Done.IsZero() {
		t.Errorf("%+v", cut)
	}
	other := ParseRecord([]byte("100 begin gpu1\n101 claim other\n102 done\n"))
	if other.Claim != "other" || other.Done.IsZero() || len(other.Runs) != 0 {
		t.Errorf("%+v", other)
	}
}

func TestRecordName(t *testing.T) {
	name := RecordName(3, 4711, 1)
	if task, job, restart, ok := ParseRecordName(name); !ok || task != 3 || job != 4711 || restart != 1 {
		t.Errorf("%s: %d %d %d %v", name, task, job, restart, ok)
	}
	for _, bad := range []string{"", "task-1.2-r0.log", "task--1.2-r0.record", "task-1.2-r0.record.bak", "task-01.2-r0.record", "x"} {
		if _, _, _, ok := ParseRecordName(bad); ok {
			t.Errorf("%q is taken for a record", bad)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte("100 begin gpu1\n101 claim held\n102 start 7\n130 end 7 0\n162 done\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, r := range ParseRecord(data).Runs {
			if r.Run <= 0 {
				t.Fatalf("%+v", r)
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	data, _, err := Encode(spec())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Decode(data, Digest(data))
		if err == nil {
			err = s.Validate()
		}
		if err != nil && !errors.Is(err, ErrSpec) {
			t.Fatal(err)
		}
	})
}

func TestParseMirrorURL(t *testing.T) {
	for text, want := range map[string]MirrorAddress{
		"sftp://u@h/":                {"u", "h:22", "/"},
		"sftp://u@h:2222/srv/x/":     {"u", "h:2222", "/srv/x"},
		"sftp://u@[::1]/srv":         {"u", "[::1]:22", "/srv"},
		"sftp://u@10.0.0.1:22/a%20b": {"u", "10.0.0.1:22", "/a b"},
	} {
		if got, err := ParseMirrorURL(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "h:/b", "http://u@h/b", "sftp:u@h/b", "sftp://h/b", "sftp://@h/b", "sftp://u@/b", "sftp://u@h", "sftp://u@h:0/b", "sftp://u@h:99999/b",
		"sftp://u@h:x/b", "sftp://u:sesame@h/b", "sftp://u:sesame@h:x/b", "sftp://u@h/a/../b", "sftp://u@h/b?x=1", "sftp://u@h/b#x", "sftp://u@-h/b", "sftp://-o@h/b",
		"sftp://u@h/%2e%2e/b", "sftp://u@h/b\n", "sftp://u@h%2fx/b",
	} {
		if got, err := ParseMirrorURL(text); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}
