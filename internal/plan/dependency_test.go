package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseDependency(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Dependency{
		"":                        {},
		"afterok:17":              {Conditions: []Condition{{AfterOK, 17}}},
		"afterok:17:18,after:19":  {Conditions: []Condition{{AfterOK, 17}, {AfterOK, 18}, {After, 19}}},
		"afterany:1?afternotok:2": {Conditions: []Condition{{AfterAny, 1}, {AfterNotOK, 2}}, Any: true},
		"singleton":               {Conditions: []Condition{{Singleton, 0}}},
		"aftercorr:3,singleton":   {Conditions: []Condition{{AfterCorr, 3}, {Singleton, 0}}},
	} {
		got, err := ParseDependency(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{"afterok", "afterok:", "afterok:x", "afterok:0", "afterok:-1", "before:1", "after:1?afterok:2,after:3", "singleton:1", ",", "afterok:" + strings.Repeat("1:", 200) + "1"} {
		if _, err := ParseDependency(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestDependency_Verdict(t *testing.T) {
	t.Parallel()
	pending := SweepProgress{}
	running := SweepProgress{Begun: true, CompleteSettings: map[int]bool{0: true}, EndedSettings: map[int]bool{0: true, 1: true}}
	complete := SweepProgress{Begun: true, Ended: true, Complete: true, CompleteSettings: map[int]bool{0: true, 1: true, 2: true}}
	broken := SweepProgress{Begun: true, Ended: true, CompleteSettings: map[int]bool{0: true}}
	for _, tc := range []struct {
		text    string
		place   int
		on      SweepProgress
		earlier bool
		want    Verdict
	}{
		{"after:1", 0, pending, false, Waiting},
		{"after:1", 0, running, false, Met},
		{"afterany:1", 0, running, false, Waiting},
		{"afterany:1", 0, broken, false, Met},
		{"afterok:1", 0, complete, false, Met},
		{"afterok:1", 0, broken, false, Never},
		{"afterok:2", 0, complete, false, Never}, // no such sweep
		{"afternotok:1", 0, broken, false, Met},
		{"afternotok:1", 0, complete, false, Never},
		{"aftercorr:1", 0, running, false, Met},
		{"aftercorr:1", 1, running, false, Never},
		{"aftercorr:1", 2, running, false, Waiting},
		{"aftercorr:1", 2, broken, false, Never},
		{"singleton", 0, pending, true, Waiting},
		{"singleton", 0, pending, false, Met},
		{"afterok:1,singleton", 0, complete, true, Waiting},
		{"afterok:1,singleton", 0, broken, true, Never},
		{"afterok:1?afternotok:1", 0, broken, false, Met},
		{"afterok:1?afterok:2", 0, broken, false, Never},
		{"afterok:1?afterok:2", 0, running, false, Waiting},
		{"", 0, pending, false, Met},
	} {
		d, err := ParseDependency(tc.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Verdict(tc.place, map[int64]SweepProgress{1: tc.on}, tc.earlier); got != tc.want {
			t.Errorf("%s of place %d on %+v: got %d, want %d", tc.text, tc.place, tc.on, got, tc.want)
		}
	}
}

func FuzzParseDependency(f *testing.F) {
	for _, s := range []string{"afterok:17:18,after:19", "afterany:1?afternotok:2", "singleton"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDependency(text)
		if err != nil || text == "" {
			return
		}
		for _, c := range d.Conditions {
			if (c.Sweep <= 0) != (c.Kind == Singleton) {
				t.Fatalf("%q: %+v", text, c)
			}
		}
		if len(d.Conditions) == 0 {
			t.Fatalf("%q: no condition", text)
		}
	})
}
