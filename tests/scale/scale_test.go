//go:build scale

// Package scale measures the daemon under 30,000 runs on a replayed fake of
// Slurm's commands: a real controller would be what is measured. It promises
// lines of name, value and target; it is no part of the ordinary tests.
package scale

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/pgtest"
	"sbench/internal/setting"
	"sbench/internal/slurmtest"
	"sbench/internal/store"
)

const (
	settings = 6000
	repeats  = 5
	// slice is the site's max_submit: the tasks of one sbatch.
	slice = 1000
	poll  = 5 * time.Second
)

// callsFile is where the fake commands of a folder write what they were and how
// long they took: the daemon passes no environment on to them.
func callsFile(bin string) string { return filepath.Join(filepath.Dir(bin), "calls") }

func TestMain(m *testing.M) {
	start := time.Now()
	if status, ok := slurmtest.Command(); ok {
		if f, err := os.OpenFile(callsFile(filepath.Dir(os.Args[0])), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644); err == nil {
			fmt.Fprintf(f, "%s %d\n", filepath.Base(os.Args[0]), time.Since(start).Nanoseconds())
			f.Close()
		}
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// calls are how often each command ran, and how long all of them took.
func calls(t *testing.T, path string) (count map[string]int, took map[string]time.Duration) {
	t.Helper()
	count, took = map[string]int{}, map[string]time.Duration{}
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, ns, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(ns, 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		count[name]++
		took[name] += time.Duration(n)
	}
	return count, took
}

func night() store.NewSweep {
	n := store.NewSweep{Name: "night", UserName: "ada", UID: os.Getuid(), Site: "lab", HardwareClass: "emulated", File: "sweep: v1\n"}
	for i := range settings {
		c := setting.Default()
		c.Model.Name = fmt.Sprintf("model-%d", i%60)
		sum := sha256.Sum256([]byte(c.Model.Name))
		c.Model.Checkpoint.Digest = "sha256:" + hex.EncodeToString(sum[:])
		c.Hardware.GPU, c.Hardware.GPUs = fmt.Sprintf("gpu%d", i%4), 1
		c.Workload.Arrival.Rate, c.Workload.Seed, c.Workload.Duration = float64(1+i%20), int64(i), 5*time.Minute
		c.Normalize()
		n.Settings = append(n.Settings, store.NewSetting{
			Hash: c.Hash(), SeriesHash: c.SeriesHash(), CanonicalSpec: c.Canonical(), Setting: c, Repeats: repeats,
		})
	}
	return n
}

type daemon struct {
	*testing.T
	cmd   *exec.Cmd
	log   *bytes.Buffer
	db    *pgx.Conn
	calls string
}

func start(t *testing.T) *daemon {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	program := filepath.Join(dir, "sbenchd")
	build := exec.Command("go", "build", "-o", program, "sbench/cmd/sbenchd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build sbenchd: %v\n%s", err, out)
	}
	dsn := pgtest.DSN(t)
	s, err := store.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.CreateSweep(t.Context(), night()); err != nil {
		t.Fatal(err)
	}
	s.Close()
	cluster := slurmtest.New(t, slurmtest.Config{MaxArraySize: 4_000_001})
	hardware := ""
	for i := range 4 {
		hardware += fmt.Sprintf("  gpu%d: {gres: \"gpu:gpu%d\", gpus_per_node: 8, partition: gpu}\n", i, i)
	}
	write("site.yaml", fmt.Sprintf(`site: v1
name: lab
cluster: fake
hardware_class: emulated
poll_interval: %[3]s
slurm: {bin: %[1]s}
partitions: {gpu: {}}
defaults: {partition: gpu}
hardware:
%[4]spaths: {spool: %[2]s/spool, results: %[2]s/results, models: %[2]s/models, images: %[2]s/images, cache: %[2]s/cache}
limits: {max_array_size: 4000001, max_submit: %[5]d, max_queue: 100000, task_minutes: 60, cold_starts: 0}
`, cluster.BinDir(), dir, poll, hardware, slice), 0o644)
	write("sbench-runner", "#!/bin/sh\n", 0o755)
	config := write("sbenchd.yaml", fmt.Sprintf("socket: d.sock\ndsn: %q\nsites: [site.yaml]\nrunner: sbench-runner\n", dsn), 0o644)
	d := &daemon{T: t, log: &bytes.Buffer{}, calls: callsFile(cluster.BinDir())}
	if d.db, err = pgx.Connect(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.db.Close(context.Background()) })
	d.cmd = exec.Command(program, "--config", config)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		_ = d.cmd.Wait()
		if t.Failed() {
			t.Logf("sbenchd:\n%s", d.log)
		}
	})
	return d
}

func (d *daemon) number(sql string) (n int) {
	d.Helper()
	if err := d.db.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		d.Fatal(err)
	}
	return n
}

// until polls for a condition.
func (d *daemon) until(deadline time.Duration, what string, ok func() bool) {
	d.Helper()
	for end := time.Now().Add(deadline); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			d.Fatalf("not within %s: %s", deadline, what)
		}
	}
}

// cpu is the processor time that the daemon itself has used.
func (d *daemon) cpu() time.Duration {
	d.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		d.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		d.Fatalf("stat: %s", text)
	}
	return time.Duration(user+system) * time.Second / 100 // USER_HZ is 100 on every Linux
}

// rss is the daemon's resident memory in MB.
func (d *daemon) rss() int {
	d.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				d.Fatal(err)
			}
			return kb >> 10
		}
	}
	d.Fatal("no VmRSS")
	return 0
}

// TestScale submits a night of 30,000 runs, then lets them wait.
func TestScale(t *testing.T) {
	d := start(t)
	began := time.Now()
	d.until(10*time.Minute, "30,000 runs submitted and every batch released", func() bool {
		return d.number("select count(*) from run where state = 'pending'") == 0 &&
			d.number("select count(*) from batch where state <> 'released'") == 0
	})
	whole := time.Since(began)
	count, took := calls(t, d.calls)
	if n := d.number("select count(*) from run where state = 'submitted'"); n != settings*repeats {
		t.Fatalf("%d runs submitted", n)
	}
	planned := d.number(fmt.Sprintf("select sum(n)::int from (select ceil(sum(n_tasks)::float8 / %d) as n from batch group by shape) s", slice))
	fmt.Printf("scale_submitted_runs %d >=%d\n", settings*repeats, settings*repeats)
	fmt.Printf("scale_sbatch_calls %d <=%d\n", count["sbatch"], planned)
	fmt.Printf("scale_submit_seconds_beyond_sbatch %.1f <=10\n", (whole - took["sbatch"]).Seconds())
	// The fake reads and writes the state of all tasks in every call, so that these
	// are its seconds, not Slurm's: submission waits for its own scontrol calls.
	fmt.Printf("scale_submit_seconds_in_fake_sbatch %.1f -\n", took["sbatch"].Seconds())
	fmt.Printf("scale_submit_seconds_in_fake_scontrol %.1f -\n", took["scontrol"].Seconds())
	fmt.Printf("scale_submit_seconds_in_fake_squeue %.1f -\n", took["squeue"].Seconds())

	// What submission left to the garbage collector goes within two of its rounds.
	settle, idle := 4*time.Minute, time.Minute
	if text := os.Getenv("SBENCH_SCALE_SETTLE"); text != "" {
		var err error
		if settle, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(settle)
	before, _ := calls(t, d.calls)
	used, from := d.cpu(), time.Now()
	time.Sleep(idle)
	after, _ := calls(t, d.calls)
	share := (d.cpu() - used).Seconds() / time.Since(from).Seconds() * 100
	ticks := after["squeue"] - before["squeue"]
	if ticks == 0 {
		t.Fatal("the tracker did not look once")
	}
	all := 0
	for name := range after {
		all += after[name] - before[name]
	}
	fmt.Printf("scale_commands_per_tick %.2f <=2\n", float64(all)/float64(ticks))
	fmt.Printf("scale_idle_rss_mb %d <=200\n", d.rss())
	fmt.Printf("scale_idle_cpu_percent %.2f <=5\n", share)
	fmt.Printf("scale_polled_every_s %.1f -\n", idle.Seconds()/float64(ticks))
}
