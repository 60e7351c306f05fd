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
		"afterany:3,singleton":    {Conditions: []Condition{{AfterAny, 3}, {Singleton, 0}}},
	} {
		got, err := ParseDependency(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{
		"afterok", "afterok:", "afterok:x", "afterok:0", "afterok:-1", "before:1", "after:1?afterok:2,after:3", "singleton:1", ",",
		"aftercorr:1", "after:1+30", "AFTEROK:1", "afterok:" + strings.Repeat("1:", 200) + "1",
	} {
		if _, err := ParseDependency(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	d, _ := ParseDependency("afterok:5:3,afterany:5,singleton")
	if diff := cmp.Diff([]int64{5, 3}, d.Sweeps()); diff != "" {
		t.Errorf("sweeps (-want +got):\n%s", diff)
	}
}

func TestDependency_Verdict(t *testing.T) {
	t.Parallel()
	pending := SweepProgress{State: "active"}
	running := SweepProgress{State: "active", Begun: true}
	complete := SweepProgress{State: "complete", Begun: true}
	broken := SweepProgress{State: "incomplete", Begun: true}
	cancelled := SweepProgress{State: "cancelled"}
	for _, tc := range []struct {
		text    string
		on      SweepProgress
		earlier bool
		want    Verdict
		why     string
	}{
		{"after:1", pending, false, Waiting, "waits for sweep 1 to begin (after)"},
		{"after:1", running, false, Met, ""},
		{"after:1", cancelled, false, Met, ""},
		{"afterany:1", running, false, Waiting, "waits for sweep 1 to end (afterany)"},
		{"afterany:1", broken, false, Met, ""},
		{"afterok:1", running, false, Waiting, "waits for sweep 1 to be complete (afterok)"},
		{"afterok:1", complete, false, Met, ""},
		{"afterok:1", broken, false, Never, "sweep 1 is incomplete, and afterok waits for it to be complete"},
		{"afterok:2", complete, false, Never, "there is no sweep 2"},
		{"afternotok:1", broken, false, Met, ""},
		{"afternotok:1", cancelled, false, Met, ""},
		{"afternotok:1", complete, false, Never, "sweep 1 is complete, and afternotok waits for it to end and not be complete"},
		{"singleton", pending, true, Waiting, "waits for an earlier sweep of this name (singleton)"},
		{"singleton", pending, false, Met, ""},
		{"afterok:1,singleton", complete, true, Waiting, "waits for an earlier sweep of this name (singleton)"},
		{"afterok:1,singleton", broken, true, Never, "sweep 1 is incomplete, and afterok waits for it to be complete"},
		{"afterok:1,singleton", pending, true, Waiting, "waits for sweep 1 to be complete (afterok), and waits for an earlier sweep of this name (singleton)"},
		{"afterok:1?afternotok:1", broken, false, Met, ""},
		{"afterok:1?afterok:2", broken, false, Never, "sweep 1 is incomplete, and afterok waits for it to be complete; there is no sweep 2"},
		{"afterok:1?afterok:2", running, false, Waiting, "waits for sweep 1 to be complete (afterok)"},
		{"", pending, false, Met, ""},
	} {
		d, err := ParseDependency(tc.text)
		if err != nil {
			t.Fatal(err)
		}
		got, why := d.Verdict(map[int64]SweepProgress{1: tc.on}, tc.earlier)
		if got != tc.want || why != tc.why {
			t.Errorf("%s on %+v: got %d %q, want %d %q", tc.text, tc.on, got, why, tc.want, tc.why)
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
