//go:build load

package load_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"testing"
)

// peerConfig is what peer/reader.py takes.
type peerConfig struct {
	URL     string  `json:"url"`
	Prompt  string  `json:"prompt"`
	Output  int     `json:"output"`
	Streams int     `json:"streams"`
	Seconds float64 `json:"seconds"`
	Spread  float64 `json:"spread"` // s over which the slots start
	Times   bool    `json:"times"`  // return the times of every stream
}

// peerResult is what it returns.
type peerResult struct {
	CPU              float64
	Requests, Events int
	Streams          []stream
}

// peer runs the aiohttp client on the client's core.
func peer(t *testing.T, c peerConfig) peerResult {
	t.Helper()
	const python = "/usr/bin/python3" // Debian's, which has Debian's packages
	if out, err := exec.Command(python, "-c", "import aiohttp").CombinedOutput(); err != nil {
		t.Skipf("aiohttp is not there (Debian: python3-aiohttp): %s", out)
	}
	c.Prompt = "one two six ten one two six ten one two six ten one two six ten"
	config, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("taskset", "-c", strconv.Itoa(clientCPU), python, "peer/reader.py", string(config))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderrOf(err))
	}
	var r peerResult
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	if r.Events == 0 {
		t.Fatal("the peer saw no event")
	}
	return r
}

func stderrOf(err error) []byte {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.Stderr
	}
	return nil
}

// Events for each second of the client's processor, beside a client as they are
// commonly written.
func TestPeer_Burst(t *testing.T) {
	measuring(t)
	for _, perWrite := range []int{16, 64} {
		address := serve(t, serverConfig{Events: 6400, PerWrite: perWrite})
		var ours, theirs float64
		for range rounds {
			p := peer(t, peerConfig{URL: "http://" + address, Output: 6400, Streams: 16, Seconds: 2})
			o := do[clientResult](t, "ours", clientConfig{Address: address, Streams: 16, Seconds: 1.5, Output: 6400, Stream: true})
			if o.Failed > 0 {
				t.Fatalf("%d failures: %s", o.Failed, o.Detail)
			}
			ours, theirs = max(ours, float64(o.Events)/o.CPU), max(theirs, float64(p.Events)/p.CPU)
		}
		figure(t, fmt.Sprintf("burst_%d_aiohttp_events_per_cpu_s", perWrite), theirs, "-")
		figure(t, fmt.Sprintf("burst_%d_ratio_to_aiohttp", perWrite), ours/theirs, ">=10")
	}
}
