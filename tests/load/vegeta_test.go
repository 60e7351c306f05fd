//go:build load

package load_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"sbench/internal/setting"
)

// vegeta runs an attack on the client's core and returns the times of its hits and
// the processor time it took.
func vegeta(t *testing.T, address string, args ...string) (at []time.Time, cpu float64) {
	t.Helper()
	program, err := filepath.Abs("../../.cache/bin/vegeta")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Skip("vegeta is not there: scripts/bench-load.sh fetches it")
	}
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	targets := file("targets", "POST http://"+address+"/v1/completions\nContent-Type: application/json\n@"+file("body", body)+"\n")
	results := filepath.Join(dir, "results")
	cmd := exec.Command("taskset", append([]string{"-c", strconv.Itoa(clientCPU), program, "attack", "-targets", targets, "-output", results}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cpu = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	encoded, err := exec.Command(program, "encode", "-to", "json", results).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(encoded))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var hit struct {
			Timestamp time.Time
			Code      int
		}
		if err := json.Unmarshal(lines.Bytes(), &hit); err != nil {
			t.Fatal(err)
		}
		if hit.Code == 200 {
			at = append(at, hit.Timestamp)
		}
	}
	return at, cpu
}

// The same constant schedule, and the same answers, by vegeta. Its own start is not
// known: it is taken so that its earliest hit is in time.
func TestVegeta_Schedule(t *testing.T) {
	measuring(t)
	for _, rate := range []float64{200, 1000, 5000} {
		address := serve(t, serverConfig{Plain: true})
		gap := time.Duration(1e9 / rate)
		a, b := math.Inf(1), math.Inf(1)
		for range rounds {
			hits, _ := vegeta(t, address, "-rate", fmt.Sprintf("%g/1s", rate), "-duration", "6s", "-connections", "256")
			start := hits[0]
			for i, at := range hits {
				if s := at.Add(-time.Duration(i) * gap); s.Before(start) {
					start = s
				}
			}
			var late []float64
			for i, at := range hits {
				late = append(late, at.Sub(start.Add(time.Duration(i)*gap)).Seconds())
			}
			ours := do[clientResult](t, "ours", clientConfig{
				Address: address, Rate: rate, Process: setting.ProcessConstant, Seconds: 6, Output: 1, Preopen: 256,
			})
			a, b = min(a, quantile(ours.Lateness, 0.99)), min(b, quantile(late, 0.99))
		}
		figure(t, fmt.Sprintf("send_lateness_p99_vegeta_us_at_%g", rate), b*1e6, "-")
		figure(t, fmt.Sprintf("send_lateness_p99_ratio_to_vegeta_at_%g", rate), a/b, "<=1.0")
	}
}

// Requests for each second of the client's processor.
func TestVegeta_Requests(t *testing.T) {
	measuring(t)
	address := serve(t, serverConfig{Plain: true})
	var a, b float64
	for range rounds {
		hits, cpu := vegeta(t, address, "-rate", "0", "-max-workers", "32", "-connections", "32", "-duration", "2s")
		ours := do[clientResult](t, "plain-ours", clientConfig{Address: address, Streams: 32, Seconds: 2, Output: 1})
		a, b = max(a, float64(ours.Requests)/ours.CPU), max(b, float64(len(hits))/cpu)
	}
	figure(t, "requests_vegeta_per_cpu_s", b, "-")
	figure(t, "requests_ratio_to_vegeta", a/b, ">=1.0")
}
