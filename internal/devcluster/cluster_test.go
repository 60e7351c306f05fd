package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// small is a cluster for tests that need little of one.
var small = Nodes{GPU: 1, CPU: 1}

// needSlurm: these tests are not skipped where Slurm is missing, they fail.
func needSlurm(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("brings a cluster up: left out with -short")
	}
	if err := requirePrograms(Options{NoDaemon: true}); err != nil {
		t.Fatal(err)
	}
}

// testDir is a short path that others may enter.
func testDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbdev")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func up(t *testing.T, o Options) *Cluster {
	t.Helper()
	o.NoDaemon = true
	start := time.Now()
	c, err := Up(t.Context(), o, func(s string) { t.Logf("%5.2fs %s", time.Since(start).Seconds(), s) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Stop(context.Background(), c.Dir(), false); err != nil {
			t.Error(err)
		}
	})
	return c
}

// shell runs a command line in the cluster's environment.
func shell(t *testing.T, c *Cluster, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Env, cmd.Dir = c.Environ(), c.path("results")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", line, err, out, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// nothingLeft looks for traces in its own way, more broadly than members does:
// any process that names the directory anywhere.
func nothingLeft(t *testing.T, dir string, port int) {
	t.Helper()
	own := ancestors(os.Getpid())
	procs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range procs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || slices.Contains(own, pid) {
			continue
		}
		cmdline, _ := os.ReadFile("/proc/" + d.Name() + "/cmdline")
		environ, _ := os.ReadFile("/proc/" + d.Name() + "/environ")
		cwd, _ := os.Readlink("/proc/" + d.Name() + "/cwd")
		if strings.Contains(string(cmdline)+string(environ)+cwd, dir) {
			t.Errorf("process %d is left: %s (in %s)", pid, commandLine(pid), cwd)
		}
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (d.Type()&fs.ModeSocket != 0 || strings.HasSuffix(path, ".lock") || strings.HasSuffix(path, ".pid")) {
			t.Errorf("%s is left", path)
		}
		return nil
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for p := port; p < port+10; p++ {
		l, err := net.Listen("tcp4", ":"+strconv.Itoa(p))
		if err != nil {
			t.Errorf("port %d is still taken: %v", p, err)
			continue
		}
		_ = l.Close()
	}
}

// segment returns a function that tells whether PostgreSQL's System V shared
// memory is still there.
func segment(t *testing.T, c *Cluster) func() bool {
	t.Helper()
	b, err := os.ReadFile(c.path("pg", "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	var key, id int
	if _, err := fmt.Sscan(strings.Split(string(b), "\n")[6], &key, &id); err != nil {
		t.Fatal(err)
	}
	return func() bool {
		var ds unix.SysvShmDesc
		_, err := unix.SysvShmCtl(id, unix.IPC_STAT, &ds)
		return err == nil && int(ds.Perm.Key) == key
	}
}

func TestUpDown(t *testing.T) {
	needSlurm(t)
	dir := testDir(t)
	start := time.Now()
	c := up(t, Options{Dir: dir})
	if took := time.Since(start); took > startLimit {
		t.Errorf("coming up took %v", took)
	}

	if _, err := Up(t.Context(), Options{Dir: dir, NoDaemon: true}, nil); !errors.Is(err, ErrAlreadyUp) {
		t.Errorf("second Up: %v, want ErrAlreadyUp", err)
	}
	s := c.Status(t.Context())
	if !s.Up || len(s.Components) != 5+8 {
		t.Errorf("status: %+v", s)
	}
	if got, want := shell(t, c, `srun -p gpu --gres=gpu:h100:2 sh -c 'echo $CUDA_VISIBLE_DEVICES $SLURMD_NODENAME'`), "0,1 gpu1"; got != want {
		t.Errorf("GPUs and node of a step: %q, want %q", got, want)
	}
	if c.namespaces {
		if got := shell(t, c, "srun -p l4 -w l4-2 --gres=gpu:l4:1 hostname"); got != "l4-2" {
			t.Errorf("hostname in a step: %q", got)
		}
	}
	if _, err := lookPath("bwrap"); err == nil {
		shell(t, c, "srun -p cpu bwrap --ro-bind / / --proc /proc --dev /dev --unshare-pid true")
	}
	if got := shell(t, c, "scontrol show topology | grep -c Level=0"); got != "2" {
		t.Errorf("leaf switches: %q", got)
	}
	if got, want := shell(t, c, "sacctmgr -nP show qos format=name | sort | xargs"), "debug high low normal"; got != want {
		t.Errorf("QOS: %q, want %q", got, want)
	}
	if got, want := shell(t, c, "sacctmgr -nP show assoc where account=ml user="+currentUser()+" format=account,defaultqos"), "ml|normal"; got != want {
		t.Errorf("association: %q, want %q", got, want)
	}
	if got, want := shell(t, c, "sacctmgr -nP show qos debug format=maxsubmitjobsperuser,maxtresperuser"), "2|gres/gpu=4"; got != want {
		t.Errorf("limits of QOS debug: %q, want %q", got, want)
	}
	if got, want := shell(t, c, "sacctmgr -nP show qos high format=preempt"), "low"; got != want {
		t.Errorf("QOS high preempts %q, want %q", got, want)
	}
	if got := shell(t, c, "psql -Atc 'select current_database()'"); got != "sbench" {
		t.Errorf("database: %q", got)
	}
	id := shell(t, c, "sbatch --parsable --array=0-1 --gres=gpu:h100:8 --wrap 'setsid sleep 600 & exec sleep 600'")
	waitState(t, c, id+"_1", "RUNNING")
	if err := os.WriteFile(c.path("cache", "staged.lock"), nil, 0o600); err != nil { // as runners leave it
		t.Fatal(err)
	}

	if err := c.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, dir, c.port)

	// Coming up again continues with the same state.
	c = up(t, Options{Dir: dir})
	if got := shell(t, c, "sacct -nX -o jobid,state%20 -j "+id+" | sort | head -1"); !strings.Contains(got, "CANCELLED") {
		t.Errorf("accounting after a restart: %q", got)
	}
	for _, name := range []string{"mariadbd", "slurmdbd"} {
		if err := c.Kill(name, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := c.Restart(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	shell(t, c, "sacct -nX -j "+id)
	if err := c.Wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, dir, c.port)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Wipe: %v", err)
	}
}

func waitState(t *testing.T, c *Cluster, job, want string) {
	t.Helper()
	var got string
	if !waitFor(30*time.Second, func() bool {
		got = shell(t, c, "squeue -h -o %T -j "+job)
		return got == want
	}) {
		t.Fatalf("job %s is %q, want %q", job, got, want)
	}
}

// TestOrdinaryUser repeats TestUpDown without root's powers.
func TestOrdinaryUser(t *testing.T) {
	needSlurm(t)
	if os.Geteuid() != 0 {
		t.Log("this test process is an ordinary user's: TestUpDown has shown it")
		return
	}
	const account = "daemon" // is on every Debian, and is nobody special to Slurm
	dir := testDir(t)
	out, err := exec.CommandContext(t.Context(), "install", "-d", "-o", account, filepath.Join(dir, "t")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "devcluster.test") // go test's own folder is closed to others
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "setpriv", "--reuid="+account, "--regid="+account, "--clear-groups",
		copied, "-test.run=^TestUpDown$|^TestFaults$", "-test.v", "-test.count=1")
	cmd.Dir = filepath.Join(dir, "t")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + cmd.Dir, "TMPDIR=" + cmd.Dir, "USER=" + account, "LOGNAME=" + account}
	out, err = cmd.CombinedOutput()
	t.Logf("as %s:\n%s", account, out)
	if err != nil {
		t.Fatal(err)
	}
}

func TestSideBySide(t *testing.T) {
	needSlurm(t)
	var wg sync.WaitGroup
	var clusters [2]*Cluster
	var errs [2]error
	for i := range clusters {
		dir := testDir(t)
		t.Cleanup(func() {
			if err := Stop(context.Background(), dir, true); err != nil {
				t.Error(err)
			}
		})
		o := Options{Dir: dir, Nodes: small, NoAccounting: true, NoDatabase: true, NoNamespaces: i == 0}
		wg.Go(func() {
			clusters[i], errs[i] = Up(t.Context(), o, nil)
		})
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if clusters[0].port == clusters[1].port {
		t.Fatalf("both clusters use port %d", clusters[0].port)
	}
	for i, c := range clusters {
		shell(t, c, fmt.Sprintf("sbatch --parsable --job-name=only%d --hold --wrap true", i))
		if got, want := shell(t, c, "squeue -h -o %j"), fmt.Sprintf("only%d", i); got != want {
			t.Errorf("jobs of cluster %d: %q, want %q", i, got, want)
		}
	}
	// Without namespaces a job's children outlive slurmd, but not the cluster.
	waitState(t, clusters[0], shell(t, clusters[0], "sbatch --parsable --wrap 'setsid sleep 600 & exec sleep 600'"), "RUNNING")
	if err := clusters[0].Wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, clusters[0].Dir(), clusters[0].port)
	if got := shell(t, clusters[1], "srun -p cpu hostname"); got == "" {
		t.Error("the other cluster is gone too")
	}
}

// TestStaleDirectory: the machine went down and came up again; pids that the
// records name belong to others now.
func TestStaleDirectory(t *testing.T) {
	needSlurm(t)
	dir := testDir(t)
	c := up(t, Options{Dir: dir, Nodes: small, NoAccounting: true})
	for _, k := range c.components() {
		if err := c.Kill(k.name, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	bystander := exec.CommandContext(t.Context(), "sleep", "600")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bystander.Process.Kill(); _ = bystander.Wait() })
	theirs, err := identify(bystander.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	older, otherBoot := theirs, theirs
	older.Start -= 100
	otherBoot.Boot = "00000000-0000-0000-0000-000000000000"
	for name, p := range map[string]process{"slurmctld": older, "gpu1": otherBoot} {
		if err := c.record(name, p); err != nil {
			t.Fatal(err)
		}
	}
	pidFile := c.path("pg", "data", "postmaster.pid")
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\n")
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(theirs.PID)+"\n"+rest), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := c.Status(t.Context()); s.Up {
		t.Error("a dead cluster says that it is up")
	}

	c = up(t, Options{Dir: dir, Nodes: small, NoAccounting: true})
	shell(t, c, "srun -p cpu true")
	if !theirs.alive() {
		t.Error("a process that had nothing to do with the cluster was killed")
	}
	left := segment(t, c)
	// The records are lost too: what runs is found all the same.
	if err := os.RemoveAll(c.path("run")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(c.path("etc")); err != nil {
		t.Fatal(err)
	}
	if err := Stop(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	if left() {
		t.Error("PostgreSQL's shared memory is left")
	}
	if err := os.RemoveAll(dir); err != nil { // without its etc the directory is not known as a cluster's
		t.Fatal(err)
	}
	nothingLeft(t, dir, c.port)
	if !theirs.alive() {
		t.Error("a process that had nothing to do with the cluster was killed")
	}
}

func TestFaults(t *testing.T) {
	needSlurm(t)
	// A closed parent: root's PostgreSQL cannot run as another account there.
	dir := filepath.Join(testDir(t), "closed")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c := up(t, Options{Dir: filepath.Join(dir, "c"), Nodes: small, NoAccounting: true})
	shell(t, c, "psql -c 'create table kept (n int); insert into kept values (1)'")
	// As Slurm does with a node whose jobs could not be killed.
	shell(t, c, "scontrol update NodeName=gpu1 State=DRAIN Reason=test")
	for _, name := range []string{"postgres", "slurmctld", "gpu1", "munged"} {
		if err := c.Kill(name, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if c.Alive(name) {
			t.Errorf("%s is alive after SIGKILL", name)
		}
		if err := c.Restart(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if got := shell(t, c, "psql -Atc 'select n from kept'"); got != "1" {
		t.Errorf("a committed row after kill -9 of PostgreSQL: %q", got)
	}
	shell(t, c, "srun -p gpu --gres=gpu:h100:8 true")

	if err := c.Kill("postgres", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	left := segment(t, c)

	// A hung controller neither answers nor ends on SIGTERM.
	if err := c.Kill("slurmctld", syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill("cpu1", syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill("nosuch", syscall.SIGKILL); err == nil {
		t.Error("Kill of an unknown component succeeded")
	}
	if err := c.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, c.Dir(), c.port)
	if left() {
		t.Error("PostgreSQL's shared memory is left")
	}
}

func TestUpRefuses(t *testing.T) {
	needSlurm(t)
	dir := testDir(t)
	if err := os.Mkdir(filepath.Join(dir, "results"), 0o755); err != nil {
		t.Fatal(err)
	}
	var option *OptionError
	if _, err := Up(t.Context(), Options{Dir: dir, NoDaemon: true}, nil); !errors.As(err, &option) {
		t.Errorf("a directory with other things in it: %v", err)
	}
	if err := Stop(t.Context(), dir, true); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "results")); err != nil {
		t.Errorf("Stop removed what is not the cluster's: %v", err)
	}
	_, err := Up(t.Context(), Options{Dir: filepath.Join(dir, "c"), Binaries: dir}, nil)
	if err == nil || !strings.Contains(err.Error(), "sbenchd") {
		t.Errorf("without sbenchd: %v", err)
	}
}
