package cli

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/api"
)

func TestTable_Aligned(t *testing.T) {
	t.Parallel()
	tab := newTable("NAME", "N>", "STATE")
	tab.add("über", 7, cell{"running", cyan})
	tab.add("b", 1234, "failed")
	tab.note("ENV_DRIFT: image \x1b[31m")
	var b bytes.Buffer
	tab.printAligned(&b, false, false)
	want := "NAME     N  STATE\nüber     7  running\nb     1234  failed\n    ENV_DRIFT: image \\x1b[31m\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
	b.Reset()
	tab.printParsable(&b, true)
	if want := "über|7|running\nb|1234|failed\n"; b.String() != want {
		t.Errorf("got %q", b.String())
	}
	b.Reset()
	tab.printAligned(&b, true, true)
	if !bytes.Contains(b.Bytes(), []byte("\x1b[36mrunning\x1b[0m")) {
		t.Errorf("no colour: %q", b.String())
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	p := func(v float64) *float64 { return &v }
	for want, v := range map[string]*float64{
		"-": nil, "0": p(0), "1235": p(1234.56), "12.35": p(12.3456), "0.01235": p(0.0123456), "1.235e-05": p(0.0000123456), "-3": p(-3),
		"123.5": p(123.46),
	} {
		if got := number(v); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := number(p(math.NaN())) + number(p(math.Inf(1))); got != "--" {
		t.Errorf("not a number printed as %q", got)
	}
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0:00": -time.Second, "0:59": 59 * time.Second, "1:00:00": time.Hour, "2-01:02:03": 49*time.Hour + 2*time.Minute + 3*time.Second,
	} {
		if got := span(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func TestMovingAxesAndLabels(t *testing.T) {
	t.Parallel()
	axes := []map[string]any{{"a.rate": 1.0, "b.rate": 2.0, "c.tensor": 1.0}, {"a.rate": 2.0, "b.rate": 3.0, "c.tensor": 1.0, "d.only": "x"}}
	moving := movingAxes(axes)
	if diff := cmp.Diff([]string{"a.rate", "b.rate", "d.only"}, moving); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a.rate", "b.rate", "only"}, labels(moving)); diff != "" {
		t.Error(diff)
	}
}

func TestMetricText(t *testing.T) {
	t.Parallel()
	mean, half := 100.0, 0.02
	if got := metricText(api.Metric{Mean: &mean, RelativeCI: &half}, false); got != "100 ±2.0%" {
		t.Errorf("got %q", got)
	}
	if got := metricText(api.Metric{Mean: &mean}, false) + " " + metricText(api.Metric{}, false); got != "100 -" {
		t.Errorf("got %q", got)
	}
}
