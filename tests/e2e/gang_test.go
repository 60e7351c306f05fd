package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"sbench/internal/api"
	"sbench/internal/fingerprint"
)

// gangSweep is a sweep of an engine that spans two nodes behind one switch: a
// script that serves on rank 0 and waits on the other, as headless ranks do.
func gangSweep(t *testing.T, name, extra, duration string) string {
	t.Helper()
	engine := filepath.Join(env.dir, "images", "gang-engine.sh")
	text := fmt.Sprintf("#!/bin/sh\nrank=$1\necho \"rank $1 of $2 meets at $3\"\nshift 3\n[ \"$rank\" = 0 ] && exec %s \"$@\"\nexec sleep 36017\n", env.bin("sbench-sim"))
	if err := os.WriteFile(engine, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`sweep: v1
name: %s
repeats: 1
setting:
  model:    {name: sim-model, precision: bf16}
  image:    {kind: host, path: %q, digest: %q}
  engine:   {kind: command, command: ["{rank}", "{nodes}", "{leader}:{gang_port}", "--listen", "{host}:{port}", "--slots", "64"]}
  hardware: {gpu: h100-sxm, gpus: 2, nodes: 2, placement: gpu%s}
  parallel: {tensor: 4}
  workload:
    kind: serving
    request: {endpoint: completions, ignore_eos: true, temperature: 0, top_p: 1}
    arrival: {process: poisson, rate: 20/s}
    input_tokens:  {distribution: constant, value: 16}
    output_tokens: {distribution: constant, value: 8}
    warmup: 500ms
    ramp: 0s
    duration: %s
    drain: 5s
    seed: 7
`, name, engine, digest(t, engine), extra, duration)
}

// TestGang: a setting of two nodes runs as one step with a task on each; both
// nodes' fingerprints are stored in full, the placement with them, and nothing of
// the engine is left on either.
func TestGang(t *testing.T) {
	id := env.submit(t, gangSweep(t, "gang", ", switches: 1", "1s"))
	env.settle(t, id)
	runs := env.runs(t, id)
	if len(runs) != 1 {
		t.Fatalf("%d runs, want 1", len(runs))
	}
	wantMeasured(t, runs[0])
	a := runs[0].Attempts[len(runs[0].Attempts)-1]
	if len(a.Nodes) != 2 || a.Nodes[0] == a.Nodes[1] {
		t.Fatalf("nodes %v, want two", a.Nodes)
	}
	fp := fingerprintOf(t, runs[0])
	if len(fp.Nodes) != 2 {
		t.Fatalf("%d nodes in the fingerprint", len(fp.Nodes))
	}
	for i, n := range fp.Nodes {
		if n.Name != a.Nodes[i] || n.Rank != i || n.GPUsAllocated == nil || *n.GPUsAllocated != 2 || n.Kernel == "" {
			t.Errorf("node %d: %s, rank %d, GPUs %v", i, n.Name, n.Rank, n.GPUsAllocated)
		}
		if n.Placed.Leaf() == "" || n.Placed.Leaf() != fp.Nodes[0].Placed.Leaf() {
			t.Errorf("node %d hangs on switch %q (%q)", i, n.Placed.Leaf(), n.Placed.TopologyAddress)
		}
	}
	if s := fp.Nodes[1].Software; s == nil || s.Image.Digest != fp.Image.Digest || len(s.Engine.Argv) < 2 || s.Engine.Argv[1] != "1" {
		t.Errorf("software of the second node: %+v", s)
	}
	noEngineLeft(t)
}

// TestGangLostRank: the runner of rank 1 is killed in the measurement; the attempt
// is refused as what it is, in time, and its node is avoided.
func TestGangLostRank(t *testing.T) {
	id := env.submit(t, gangSweep(t, "gang-lost", "", "300s"))
	var pid int
	poll(t, 3*time.Minute, "the engine of rank 1", func() bool {
		pid, _ = strconv.Atoi(strings.TrimSpace(env.exec(t, "pgrep", "-f", rankOne).stdout))
		return pid != 0 && env.sweep(t, id).Runs["running"] > 0
	}, func() string { return env.exec(t, "squeue", "-a").stdout })
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	parent := regexp.MustCompile(`PPid:\s+(\d+)`).FindStringSubmatch(string(status))[1]
	line, _ := os.ReadFile("/proc/" + parent + "/cmdline")
	if !strings.Contains(string(line), "sbench-runner") {
		t.Fatalf("process %s, the parent of %d, is %q", parent, pid, line)
	}
	env.must(t, "kill", "-9", parent)
	var seen api.Run
	poll(t, 2*time.Minute, "the attempt to be refused", func() bool {
		runs := env.runs(t, id)
		if len(runs) != 1 || len(runs[0].Attempts) == 0 {
			return false
		}
		seen = runs[0]
		return true
	}, func() string { return env.exec(t, "squeue", "-a").stdout })
	env.must(t, "sbench", "cancel", id)
	env.settle(t, id)
	a := seen.Attempts[0]
	if a.ExitClass == nil || *a.ExitClass != "drift_node" || len(a.Reasons) == 0 || !strings.HasPrefix(a.Reasons[0], "GANG: rank 1 on "+a.Nodes[1]+": lost") {
		t.Errorf("attempt ended as %v: %q", a.ExitClass, a.Reasons)
	}
	noEngineLeft(t)
}

// rankOne matches the process of the second rank, and no command that names it.
const rankOne = "^sleep 36017"

// noEngineLeft waits until no engine of a gang runs.
func noEngineLeft(t *testing.T) {
	t.Helper()
	engine := "^" + regexp.QuoteMeta(env.bin("sbench-sim")) + " --listen|" + rankOne
	poll(t, time.Minute, "the engines to be gone", func() bool {
		return env.exec(t, "pgrep", "-f", engine).stdout == ""
	}, func() string { return env.exec(t, "pgrep", "-af", engine).stdout })
}

// fingerprintOf reads the stored fingerprint of a run's last result.
func fingerprintOf(t *testing.T, r api.Run) fingerprint.Fingerprint {
	t.Helper()
	text := env.must(t, "psql", "-AtX", "-c", "select fingerprint from result where run_id = "+strconv.FormatInt(r.ID, 10)+" order by attempt_id desc limit 1")
	var fp fingerprint.Fingerprint
	if err := json.Unmarshal([]byte(text), &fp); err != nil {
		t.Fatalf("fingerprint %q: %v", text, err)
	}
	return fp
}

// TestSharedServer: settings that differ in their rate alone are measured on one
// server, in one step; each attempt says which place in its life it had, and that
// the prefix cache was emptied before it.
func TestSharedServer(t *testing.T) {
	file := simSweep(t, "shared", 1, "[20/s, 25/s, 30/s]", "500ms")
	file = strings.Replace(file, `"--slots", "64"]}`, `"--slots", "64", "--prefix-cache-tokens", "4096"], server_life: shared}`, 1)
	id := env.submit(t, file)
	env.settle(t, id)
	runs := env.runs(t, id)
	if len(runs) != 3 {
		t.Fatalf("%d runs, want 3", len(runs))
	}
	positions, servers := map[int]bool{}, map[string]bool{}
	for _, r := range runs {
		wantMeasured(t, r)
		if len(r.Attempts) != 1 || r.State != "complete" {
			continue // the machine was too busy: it was measured again, on another server
		}
		life := fingerprintOf(t, r).Engine.Life
		if life.Kind != "shared" || life.Cache != "reset" {
			t.Errorf("run %d: life %+v", r.ID, life)
		}
		if positions[life.Position] {
			t.Errorf("two runs have position %d", life.Position)
		}
		positions[life.Position], servers[life.Started] = true, true
	}
	if len(servers) > 1 {
		t.Errorf("started at %v, want one server; positions %v", servers, positions)
	}
	noEngineLeft(t)
}
