package faults

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"sbench/internal/collect"
	"sbench/internal/devcluster"
	"sbench/internal/lifecycle"
	"sbench/internal/setting"
	"sbench/internal/store"
	"sbench/internal/submit"
	"sbench/internal/track"
)

// envRuns is how many runs the matrix has; without it, the short form.
const envRuns = "SBENCH_KILL_RUNS"

const (
	// shortRuns end in a minute or two.
	shortRuns = 36
	// waveRuns is how many runs of a longer matrix are in the works at a time: each
	// wave has everything broken under it, and is then brought to its end.
	waveRuns = 200
)

// failpoints are the numbered steps between which the daemon is killed.
var failpoints = []string{
	submit.FailFrozen, submit.FailCommitted, submit.FailTrying, submit.FailSubmitted, submit.FailHeld, submit.FailReleased,
	track.FailObserved, track.FailApplied, track.FailSettled,
	collect.FailFound, collect.FailVerified, collect.FailStored, collect.FailSettled,
}

// TestKillMatrix: with everything failing under it, the daemon loses no run,
// measures none twice and counts none twice.
func TestKillMatrix(t *testing.T) {
	if testing.Short() {
		t.Skip("brings a cluster up: left out with -short")
	}
	runs := shortRuns
	if text := os.Getenv(envRuns); text != "" {
		var err error
		if runs, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	size := min(runs, waveRuns)
	m := newMatrix(t, size, runs)
	var sweeps []int64
	for left := runs; left > 0; left -= size {
		begin := time.Now()
		sweeps = append(sweeps, m.wave(min(size, left), len(sweeps), runs > shortRuns))
		t.Logf("wave %d, %d runs: %v", len(sweeps), min(size, left), time.Since(begin).Round(time.Second))
	}
	m.report(sweeps, runs)
}

// wave has a sweep of that many runs done while everything fails, and repairs and
// waits for its end.
func (m *matrix) wave(runs, number int, long bool) (sweep int64) {
	sweep = m.submit(runs, number)
	ctx, stop := context.WithCancel(m.Context())
	defer stop()
	var wait sync.WaitGroup
	wait.Go(func() { m.superviseDaemon(ctx) })
	wait.Go(func() { m.killAfterSubmit(ctx) })
	m.breakThings(ctx, long)
	stop()
	wait.Wait()
	m.repair()
	calm, stopCalm := context.WithCancel(m.Context())
	defer stopCalm()
	wait.Go(func() { m.serveCalmly(calm, long) })
	m.await(sweep, runs, time.Duration(runs)*time.Second+10*time.Minute)
	stopCalm()
	wait.Wait()
	return sweep
}

type matrix struct {
	*testing.T
	dir     string
	cluster *devcluster.Cluster
	site    string // its file
	small   string // a file system that can be filled; "" where none could be mounted
	store   *store.Store
	turn    int // of the daemons
	mu      sync.Mutex
	killed  map[string]int
	// breaking is held by who breaks something: a slurmctld without a saved state
	// does not start while slurmdbd is down.
	breaking sync.Mutex
	log      *os.File
}

func newMatrix(t *testing.T, size, runs int) *matrix {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sbf")
	if err != nil {
		t.Fatal(err)
	}
	m := &matrix{T: t, dir: dir, killed: map[string]int{}}
	bin := filepath.Join(dir, "bin")
	if err := errors.Join(os.Mkdir(bin, 0o755), os.Mkdir(filepath.Join(dir, disk), 0o755)); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sbenchd", "sbench-runner"} {
		if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if m.log, err = os.Create(filepath.Join(dir, "sbenchd.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.end)
	// The nodes see the file systems that were there when they started.
	m.mount(runs)
	m.cluster, err = devcluster.Up(t.Context(), devcluster.Options{
		Dir: filepath.Join(dir, "c"), Nodes: devcluster.Nodes{CPU: 4}, NoDaemon: true, Binaries: bin,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.writeSite(size)
	if m.store, err = store.Open(t.Context(), m.cluster.DSN()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.store.Close)
	if err := m.store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return m
}

// end takes the cluster down, and leaves what explains a failure.
func (m *matrix) end() {
	m.log.Close()
	if err := devcluster.Stop(context.Background(), filepath.Join(m.dir, "c"), !m.Failed()); err != nil {
		m.Error(err)
	}
	if m.Failed() {
		m.Logf("the daemon's log is %s", m.log.Name())
		return
	}
	if m.small != "" {
		if err := syscall.Unmount(m.small, 0); err != nil {
			m.Errorf("unmount %s: %v", m.small, err)
		}
	}
	os.RemoveAll(m.dir)
}

// submit stores a sweep of that many runs, with a budget that chaos cannot spend.
func (m *matrix) submit(runs, number int) int64 {
	m.Helper()
	const settings = 6
	n := store.NewSweep{
		Name: "kill", UserName: "ada", UID: os.Getuid(), Site: m.cluster.Name(), HardwareClass: "emulated", File: "x",
		Budget: lifecycle.Budget{Attempts: 50, Free: 100},
	}
	for i := range settings {
		s := setting.Default()
		s.Model.Name = "quick"
		s.Hardware.GPU, s.Hardware.GPUs, s.Hardware.Placement = "cpu-x86", 0, setting.PlacementGPU
		s.Workload.Seed = int64(number*settings + i)
		s.Workload.Duration = 2 * time.Second
		s.Normalize()
		n.Settings = append(n.Settings, store.NewSetting{
			Hash: s.Hash(), SeriesHash: s.SeriesHash(), CanonicalSpec: s.Canonical(), Setting: s, Repeats: (runs + settings - 1 - i) / settings,
		})
	}
	id, _, err := m.store.CreateSweep(m.Context(), n)
	if err != nil {
		m.Fatal(err)
	}
	return id
}

// superviseDaemon starts the daemon again whenever it dies: at each failpoint in
// turn, on from where the wave before stopped, and between them after a random while, two at a time now and then.
func (m *matrix) superviseDaemon(ctx context.Context) {
	for ; ctx.Err() == nil; m.turn++ {
		i := m.turn
		point := failpoints[i/2%len(failpoints)]
		if i%2 == 0 {
			m.daemonOnce(ctx, point, 10*time.Second)
			continue
		}
		if i/2%2 == 1 {
			m.count("two daemons")
		}
		var both sync.WaitGroup
		for range 1 + i/2%2 {
			both.Go(func() { m.daemonOnce(ctx, "", time.Duration(2000+rand.IntN(6000))*time.Millisecond) })
		}
		both.Wait()
	}
}

// serveCalmly runs the daemon to the end of a wave. Of a long matrix it dies at the
// points at which no daemon has died yet: some are only reached when much has ended.
func (m *matrix) serveCalmly(ctx context.Context, long bool) {
	for at := 0; ctx.Err() == nil; at++ {
		left := m.spared()
		if !long || len(left) == 0 {
			m.daemonOnce(ctx, "", 0)
			return
		}
		m.daemonOnce(ctx, left[at%len(left)], 20*time.Second)
	}
}

// spared are the failpoints at which no daemon has died yet.
func (m *matrix) spared() (points []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, point := range failpoints {
		if m.killed["daemon at "+point] == 0 {
			points = append(points, point)
		}
	}
	return points
}

// patience is how long a daemon may take to be elected before its time counts.
const patience = 20 * time.Second

// daemonOnce runs a daemon until it dies, or for at most so long after it began to
// act, and then kills it.
func (m *matrix) daemonOnce(ctx context.Context, failpoint string, most time.Duration) {
	cmd := exec.Command(filepath.Join(m.dir, "bin", "sbenchd"))
	cmd.Env = append(m.cluster.Environ(), envDSN+"="+m.cluster.DSN(), envSite+"="+m.site,
		envRunner+"="+filepath.Join(m.dir, "bin", "sbench-runner"), envFailpoint+"="+failpoint)
	acts := make(chan struct{})
	cmd.Stdout, cmd.Stderr = &signalWriter{written: acts}, m.log
	if err := cmd.Start(); err != nil {
		m.Error(err)
		return
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	waiting, timer := time.After(patience), (<-chan time.Time)(nil)
	if most == 0 {
		acts, waiting = nil, nil
	}
	for {
		select {
		case <-acts:
			acts, waiting, timer = nil, nil, time.After(most)
		case <-waiting:
			acts, waiting, timer = nil, nil, time.After(most)
		case err := <-done:
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
				m.count("daemon at " + failpoint)
				return
			}
			pause(ctx, 500*time.Millisecond, time.Second) // the database may be away
			return
		case <-timer:
			m.count("daemon at random")
			_ = cmd.Process.Kill()
			<-done
			return
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			<-done
			return
		}
	}
}

// signalWriter closes written at the first write.
type signalWriter struct {
	written chan struct{}
	once    sync.Once
}

func (w *signalWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.written) })
	return len(p), nil
}

func (m *matrix) count(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.killed[what]++
}

// restart brings a component back, which may take some tries on a busy machine.
func (m *matrix) restart(name string) {
	var err error
	for range 4 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(m.Context()), time.Minute)
		err = m.cluster.Restart(ctx, name)
		cancel()
		if err == nil {
			return
		}
		if name != "slurmdbd" && !m.cluster.Alive("slurmdbd") {
			m.restart("slurmdbd")
		}
	}
	m.Logf("restart %s: %v", name, err)
}

// repair starts what is not there.
func (m *matrix) repair() {
	_ = m.cluster.Kill("slurmctld", syscall.SIGCONT)
	for _, name := range []string{"postgres", "slurmdbd", "slurmctld", "cpu1", "cpu2", "cpu3", "cpu4"} {
		if !m.cluster.Alive(name) {
			m.restart(name)
		}
	}
}

// await waits until that many runs of the sweep are terminal, and it has ended.
func (m *matrix) await(sweep int64, runs int, most time.Duration) {
	m.Helper()
	deadline := time.Now().Add(most)
	last := ""
	for {
		states, err := m.states(sweep)
		ended := 0
		for state, n := range states {
			if state.Terminal() {
				ended += n
			}
		}
		if text := fmt.Sprint(states); err == nil && text != last {
			last = text
		}
		if err == nil && ended >= runs {
			// The last settings are summed up behind their runs.
			if s, err := m.store.Sweep(m.Context(), sweep); err == nil && s.State != store.SweepActive {
				return
			}
		}
		if time.Now().After(deadline) {
			m.explainOpen(sweep)
			m.Fatalf("%d of %d runs have ended in time: %s, %v", ended, runs, last, err)
		}
		time.Sleep(250 * time.Millisecond)
	}
}

// explainOpen logs why runs have not ended: what became of them, what Slurm says, and
// what the daemon said last.
func (m *matrix) explainOpen(sweep int64) {
	runs, err := m.store.RunsOfSweep(m.Context(), sweep, nil)
	if err != nil {
		m.Log(err)
	}
	for _, r := range runs {
		if !r.State.Terminal() {
			m.Logf("run %d is %s", r.ID, r.State)
			m.history(r.ID)
		}
	}
	for _, command := range []string{"squeue --all --states=all", "sinfo -N -l", "scontrol show job --details"} {
		words := strings.Fields(command)
		ctx, cancel := context.WithTimeout(m.Context(), 20*time.Second)
		cmd := exec.CommandContext(ctx, words[0], words[1:]...)
		cmd.Env = m.cluster.Environ()
		out, err := cmd.CombinedOutput()
		cancel()
		m.Logf("%s: %v\n%s", command, err, out[max(0, len(out)-20_000):])
	}
	if text, err := os.ReadFile(m.log.Name()); err == nil {
		m.Logf("the daemon's log ends\n%s", text[max(0, len(text)-10_000):])
	}
}

func (m *matrix) history(run int64) {
	history, err := m.store.RunHistory(m.Context(), run)
	if err != nil {
		m.Log(err)
	}
	for _, h := range history {
		m.Logf("  %s %s %s → %s by %s: %s %s", h.At.Format("15:04:05.000"), h.Entity, h.FromState, h.ToState, h.Actor, h.Reason, h.Evidence)
	}
}

func (m *matrix) states(sweep int64) (map[lifecycle.RunState]int, error) {
	ctx, cancel := context.WithTimeout(m.Context(), 5*time.Second)
	defer cancel()
	list, err := m.store.RunsOfSweep(ctx, sweep, nil)
	states := map[lifecycle.RunState]int{}
	for _, r := range list {
		states[r.State]++
	}
	return states, err
}

// report counts, prints the table and judges.
func (m *matrix) report(sweeps []int64, runs int) {
	m.Helper()
	total := map[lifecycle.RunState]int{}
	counted, double := 0, 0
	for _, sweep := range sweeps {
		states, err := m.states(sweep)
		if err != nil {
			m.Fatal(err)
		}
		for state, n := range states {
			total[state] += n
		}
		valid, twice := m.counted(sweep)
		counted, double = counted+valid, double+twice
		switch ended, err := m.store.Sweep(m.Context(), sweep); {
		case err != nil:
			m.Error(err)
		case ended.State != store.SweepComplete:
			m.Errorf("sweep %d is %s", sweep, ended.State)
		}
	}
	if left := m.spared(); runs > shortRuns && len(left) > 0 {
		m.Errorf("no daemon died at %s", strings.Join(left, ", "))
	}
	lost := runs - total[lifecycle.RunComplete]
	sealed, duplicated := m.ledger()
	var out bytes.Buffer
	fmt.Fprintln(&out)
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KILLED\tTIMES")
	for _, what := range slices.Sorted(keys(m.killed)) {
		fmt.Fprintf(w, "%s\t%d\n", what, m.killed[what])
	}
	w.Flush()
	if m.small == "" {
		fmt.Fprintln(&out, "the full disk was left out: mounting a small file system needs root")
	}
	fmt.Fprintf(&out, "attempts sealed %d, results counted %d, states %v\n", sealed, counted, total)
	fmt.Fprintf(&out, "runs %d lost %d duplicated %d double-counted %d\n", runs, lost, duplicated, double)
	fmt.Print(out.String())
	if lost+duplicated+double > 0 {
		m.Error("see above")
	}
}

func keys(m map[string]int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// ledger counts what the runners say that they sealed, and the runs that were
// measured again although their first measurement was there.
func (m *matrix) ledger() (sealed, duplicated int) {
	m.Helper()
	f, err := os.Open(filepath.Join(m.dir, ledger))
	if err != nil {
		m.Fatal(err)
	}
	defer f.Close()
	measured := map[string][]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 4 && fields[3] == killedRunner {
			m.killed["runner"]++
			continue
		}
		sealed++
		if len(fields) == 4 && fields[3] == string(lifecycle.ExitMeasured) {
			measured[fields[0]] = append(measured[fields[0]], lines.Text())
		}
	}
	for run, lines := range measured {
		if len(lines) < 2 {
			continue
		}
		if duplicated++; duplicated <= 5 {
			m.explain(run, lines)
		}
	}
	return sealed, duplicated
}

// explain logs how it came that a run was measured twice.
func (m *matrix) explain(run string, lines []string) {
	m.Logf("measured twice (run, job, restart): %s", strings.Join(lines, " | "))
	id, err := strconv.ParseInt(run, 10, 64)
	if err != nil {
		return
	}
	m.history(id)
}

// counted sums the n_valid of the sweep's settings, and how many are more than
// there were runs.
func (m *matrix) counted(sweep int64) (valid, double int) {
	m.Helper()
	settings, err := m.store.SettingViews(m.Context(), sweep)
	if err != nil {
		m.Fatal(err)
	}
	for _, s := range settings {
		results, err := m.store.Results(m.Context(), store.SettingKey{SweepID: sweep, SettingHash: s.SettingHash})
		if err != nil {
			m.Fatal(err)
		}
		seen := map[int64]bool{}
		for _, r := range results {
			if seen[r.RunID] {
				double++
			}
			seen[r.RunID] = true
		}
		valid += len(results)
	}
	return valid, double
}
