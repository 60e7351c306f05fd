package engine

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseMetrics(t *testing.T) {
	t.Parallel()
	got := ParseMetrics([]byte(`# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a b}c",engine="0"} 3.0
vllm:num_requests_running{model_name="x",engine="1"} 2.0
vllm:prefix_cache_hits_total 17 1700000000
vllm:e2e_seconds_bucket{le="0.5"} 9
vllm:e2e_seconds_sum 4.5
go_gc_seconds{quantile="0.5"} 1
nan_thing NaN
inf_thing +Inf
half{a="b" 1
novalue
bad-name 3
`))
	want := map[string]float64{"vllm:num_requests_running": 5, "vllm:prefix_cache_hits_total": 17, "vllm:e2e_seconds_sum": 4.5}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestScrape(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]int{"a 1\nb 2\n": 2, "": 0, "404": 0} {
		r := serve(t, func(w http.ResponseWriter, req *http.Request) {
			if answer == "404" || req.URL.Path != "/metrics" {
				http.NotFound(w, req)
				return
			}
			fmt.Fprint(w, answer)
		})
		base := "http://" + net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
		if got := Scrape(t.Context(), base); len(got) != want {
			t.Errorf("%q: %v", answer, got)
		}
	}
}

func FuzzParseMetrics(f *testing.F) {
	f.Add([]byte("a{b=\"c\"} 1\n"))
	f.Add([]byte(strings.Repeat("a_b 1\n", 10)))
	f.Fuzz(func(t *testing.T, text []byte) {
		for name, v := range ParseMetrics(text) {
			if name == "" || math.IsNaN(v) {
				t.Errorf("%q %v", name, v)
			}
		}
	})
}
