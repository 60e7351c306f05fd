package sim

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseFault(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"stall:at=10s,for=500ms":           "stall:at=10s,for=500ms",
		"stall:at=1s,for=10ms,every=1m":    "stall:at=1s,for=10ms,every=1m0s",
		"http:status=429,rate=0.05":        "http:status=429,rate=0.05",
		"html":                             "html:status=200,rate=1",
		"stream-error:after=3,rate=0.5":    "stream-error:after=3,rate=0.5",
		"loading:for=5s":                   "loading:for=5s",
		"cold:for=1s,factor=3":             "cold:for=1s,factor=3",
		"die:at=1s":                        "die:at=1s",
		"short:factor=0.5":                 "short:factor=0.5,rate=1",
		"no-done":                          "no-done:rate=1",
		"http:status=500,status=503,rate=": "error",
		"stall:at=10s":                     "error",
		"stall:for=1s,every=1s":            "error",
		"http:rate=0.1":                    "error",
		"http:status=200":                  "error",
		"drop:rate=2":                      "error",
		"drop:rate=NaN":                    "error",
		"drop:at=1s":                       "error",
		"cold:for=1s":                      "error",
		"short":                            "error",
		"nonsense:rate=1":                  "error",
		"":                                 "error",
		"truncate:after=-1":                "error",
	} {
		f, err := ParseFault(text)
		if want == "error" {
			if err == nil {
				t.Errorf("%q: no error", text)
			}
			continue
		}
		if err != nil || f.String() != want {
			t.Errorf("%q: %q, %v, want %q", text, f.String(), err, want)
		}
	}
}

func FuzzParseFault(f *testing.F) {
	f.Add("stall:at=10s,for=500ms")
	f.Add("http:status=429,rate=0.05")
	f.Fuzz(func(t *testing.T, text string) {
		fault, err := ParseFault(text)
		if err != nil {
			return
		}
		again, err := ParseFault(fault.String())
		if err != nil || again.String() != fault.String() {
			t.Errorf("%q: %q reads as %q, %v", text, fault.String(), again.String(), err)
		}
	})
}

func TestDisturb(t *testing.T) {
	t.Parallel()
	parse := func(text string) []Fault {
		f, err := ParseFault(text)
		if err != nil {
			t.Fatal(err)
		}
		return []Fault{f}
	}
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, c := range []struct {
		fault            string
		start, end, want int
	}{
		{"stall:at=100ms,for=50ms", 0, 20, 20},
		{"stall:at=100ms,for=50ms", 90, 110, 160},  // pauses for 50 ms
		{"stall:at=100ms,for=50ms", 100, 110, 160}, // begins as it begins
		{"stall:at=100ms,for=50ms", 130, 140, 160}, // begins inside
		{"stall:at=100ms,for=50ms", 150, 160, 160},
		{"stall:at=100ms,for=50ms,every=200ms", 290, 310, 360},
		{"stall:at=100ms,for=50ms,every=200ms", 340, 350, 360},
		{"stall:at=100ms,for=50ms,every=200ms", 160, 170, 170},
		{"stall:at=100ms,for=50ms,every=60ms", 90, 130, 280}, // 40 ms of work, of which each gap lets 10 through
		{"cold:for=1s,factor=3", 10, 20, 40},
		{"cold:for=1s,factor=3", 1000, 1010, 1010},
	} {
		if got := disturb(parse(c.fault), ms(c.start), ms(c.end)); got != ms(c.want) {
			t.Errorf("%s: %d to %d ms ends at %v, want %d ms", c.fault, c.start, c.end, got, c.want)
		}
	}
}

func TestFateOf_Rates(t *testing.T) {
	t.Parallel()
	reject, err := ParseFault("http:status=503,rate=0.1")
	if err != nil {
		t.Fatal(err)
	}
	drop, err := ParseFault("drop:rate=0.3,after=2")
	if err != nil {
		t.Fatal(err)
	}
	faults := []Fault{reject, drop}
	var rejected, dropped, both int
	const n = 20000
	for i := range int64(n) {
		f := fateOf(faults, 1, i)
		if again := fateOf(faults, 1, i); again.names != f.names {
			t.Fatal("the same request has two fates")
		}
		if f.reject != nil {
			rejected++
		}
		if f.cut == Drop {
			dropped++
		}
		if f.reject != nil && f.cut == Drop {
			both++
		}
	}
	for what, c := range map[string][2]float64{"rejected": {float64(rejected), 0.1}, "dropped": {float64(dropped), 0.3}, "both": {float64(both), 0.03}} {
		if share := c[0] / n; math.Abs(share-c[1]) > 0.01 {
			t.Errorf("%s: %.3f, want about %.2f", what, share, c[1])
		}
	}
}

func TestNoise(t *testing.T) {
	t.Parallel()
	n, err := ParseNoise("run=0.02,night=0.05,step=0.1")
	if err != nil || n != (Noise{Run: 0.02, Night: 0.05, Step: 0.1}) {
		t.Fatalf("%+v, %v", n, err)
	}
	for _, bad := range []string{"run=x", "day=0.1", "run=-1", "run=2", "run"} {
		if _, err := ParseNoise(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	var sum, squares float64
	const draws = 20000
	for i := range draws {
		m := n.draw(1, Names{Run: strings.Repeat("r", i%7) + string(rune('a'+i%26)) + strings.Repeat("x", i/182), Night: "n"})
		z := math.Log(m.Run) / n.Run
		sum += z
		squares += z * z
		if m.Node != 1 {
			t.Fatal("a factor without a sigma")
		}
	}
	mean, variance := sum/draws, squares/draws
	if math.Abs(mean) > 0.03 || math.Abs(variance-1) > 0.05 {
		t.Errorf("z has mean %.3f and variance %.3f, want 0 and 1", mean, variance)
	}
	a, b := n.draw(1, Names{Run: "a", Night: "x"}), n.draw(1, Names{Run: "b", Night: "x"})
	if a.Night != b.Night || a.Run == b.Run {
		t.Errorf("two runs of one night: %+v and %+v", a, b)
	}
}
