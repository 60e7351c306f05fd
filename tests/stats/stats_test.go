package main

import "testing"

// The short form of make stats-sim: fewer nights, the same seeds, the same code.
// A coverage gets the room that so few nights need: three standard errors of
// 1,500 nights at 94 % are 1.9 points.
func TestSimulations(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("half a minute of arithmetic")
	}
	for _, f := range figures(1500, 400, 4, func(figure) {}) {
		room := f
		if f.target == ">=94" {
			room.target = ">=92.1"
		}
		if !room.met() {
			t.Errorf("%s %.2f, target %s", f.name, f.value, f.target)
		}
	}
}

func TestFigure_Met(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value  float64
		target string
		want   bool
	}{{94, ">=94", true}, {93.9, ">=94", false}, {1, "<1", false}, {0.9, "<1", true}, {10, "<=10", true}, {1, "nonsense", false}} {
		if got := (figure{"x", c.value, c.target}).met(); got != c.want {
			t.Errorf("%g %s: %v", c.value, c.target, got)
		}
	}
}
