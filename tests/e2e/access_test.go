package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sbench/internal/api"
	"sbench/internal/devcluster"
)

// stranger is another user of this machine with an association in Slurm.
type stranger struct {
	name    string
	account *user.User
	sbench  string // a copy that everybody may execute
}

// newStranger makes a user, who is gone with the test. Only root can.
func newStranger(t *testing.T) *stranger {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: another real user is made by root only")
	}
	name := "sbe2e" + strconv.Itoa(os.Getpid())
	if out, err := exec.Command("useradd", "--system", "--no-create-home", "--shell", "/bin/sh", name).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no further user can be made here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("userdel", name).CombinedOutput(); err != nil {
			t.Errorf("userdel: %v: %s", err, out)
		}
	})
	account, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	s := &stranger{name: name, account: account, sbench: filepath.Join(filepath.Dir(env.dir), "sbench-of-all")}
	if err := copyFile(env.bin("sbench"), s.sbench); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(s.sbench, 0o755), os.Chmod(filepath.Dir(env.dir), 0o711)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { env.exec(t, "sacctmgr", "-i", "delete", "user", name) })
	env.must(t, "sacctmgr", "-i", "add", "user", name, "account=ml", "qos=normal,high,low,debug", "defaultqos=normal")
	return s
}

// run runs sbench as the stranger: over the socket, or over TCP by MUNGE.
func (s *stranger) run(t *testing.T, remote bool, stdin string, args ...string) output {
	t.Helper()
	number := func(text string) uint32 {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(n)
	}
	cmd := exec.Command(s.sbench, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: number(s.account.Uid), Gid: number(s.account.Gid)}}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "SBENCH_SOCKET=" + filepath.Join(env.dir, "run/sbenchd.sock")}
	if remote {
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "SBENCH_SERVER=http://" + env.address, "SBENCH_MUNGE_SOCKET=" + filepath.Join(env.dir, "run/munge.sock")}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("sbench %v as %s: %v", args, s.name, err)
	}
	return output{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// refused expects exit status 3 and words that say why.
func refused(t *testing.T, out output, why string) {
	t.Helper()
	if out.code != 3 || !strings.Contains(out.stderr, why) {
		t.Errorf("exit %d, want 3 for %q\n%s%s", out.code, why, out.stdout, out.stderr)
	}
}

// TestStranger: another real user is who they are, over the socket and over TCP
// with real MUNGE credentials, and can neither cancel nor read another's work, nor
// spend where the daemon submits as its own user.
func TestStranger(t *testing.T) {
	t.Parallel()
	other := newStranger(t)
	id := env.submit(t, simSweep(t, "not-yours", 1, "[20/s]", "1s"), "--hold")
	for name, remote := range map[string]bool{"socket": false, "TCP": true} {
		t.Run(name, func(t *testing.T) {
			if out := other.run(t, remote, "", "version", "--daemon", "--json"); out.code != 0 || !strings.Contains(out.stdout, strconv.Quote(other.name)) {
				t.Fatalf("exit %d: the daemon does not know %s\n%s%s", out.code, other.name, out.stdout, out.stderr)
			}
			refused(t, other.run(t, remote, "", "cancel", id), "not yours")
			refused(t, other.run(t, remote, "", "release", id), "not yours")
			refused(t, other.run(t, remote, simSweep(t, "theirs", 1, "[20/s]", "1s"), "submit", "-"), "as another user than "+other.name)
			refused(t, other.run(t, remote, "", "quota", "set", "100"), "admin")
			refused(t, other.run(t, remote, "", "site", "pause", devName(t)), other.name)
		})
	}
	if sweep := env.sweep(t, id); sweep.State != "held" {
		t.Errorf("the sweep is %s after a stranger's attempts", sweep.State)
	}
	// A credential is good once, and only for what it was made for.
	if out := env.exec(t, "env", "SBENCH_SERVER=http://"+env.address, "SBENCH_MUNGE_SOCKET="+filepath.Join(env.dir, "run/munge.sock"), "sbench", "cancel", id); out.code != 0 {
		t.Errorf("cancel by its owner over TCP: exit %d\n%s", out.code, out.stderr)
	}
	env.settle(t, id)
}

func devName(t *testing.T) string {
	t.Helper()
	lab, err := devcluster.Open(env.dir)
	if err != nil {
		t.Fatal(err)
	}
	return lab.Name()
}

// TestServiceMode: one service account submits for real users. Only registered
// images run for them, Slurm sees the service account, and sbench says whose it is.
func TestServiceMode(t *testing.T) {
	other := newStranger(t)
	env.withSite(t, "submit_as: user", "submit_as: service")

	refused(t, other.run(t, false, simSweep(t, "theirs", 1, "[20/s]", "1s"), "submit", "-"), "are for admins")
	demo, err := os.ReadFile(filepath.Join(env.root, "docs/examples/demo.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	one := string(demo)[:strings.Index(string(demo), "matrix:")]
	image := filepath.Join(env.dir, "images/engine.sif")
	submit := []string{
		"submit", "--parsable", "--repeats", "1", "--set", "workload.duration=4s", "--set", "image.digest=" + digest(t, image),
		"--set", "model.checkpoint.digest=" + digest(t, filepath.Join(env.dir, "models/model.gguf")), "-",
	}
	refused(t, other.run(t, false, one, submit...), "only registered images run")
	env.must(t, "sbench", "image", "add", image)
	out := other.run(t, true, one, submit...)
	if out.code != 0 {
		t.Fatalf("submit with a registered image: exit %d\n%s", out.code, out.stderr)
	}
	id := strings.TrimSpace(out.stdout)
	if sweep := env.settle(t, id); sweep.User != other.name {
		t.Errorf("the sweep is of %s, not of %s", sweep.User, other.name)
	}
	for _, run := range env.runs(t, id) {
		wantMeasured(t, run)
		if len(run.Attempts) == 0 {
			continue
		}
		// The daemon's user is Slurm's; the comment says for whom.
		job := strconv.FormatInt(run.Attempts[0].JobIDRaw, 10)
		poll(t, time.Minute, "sacct to know the job", func() bool {
			said := env.exec(t, "sacct", "-nXP", "-j", job, "--format=User,Account,Comment").stdout
			return strings.HasPrefix(said, "root|ml|") && strings.Contains(said, other.name)
		}, func() string { return env.exec(t, "sacct", "-nXP", "-j", job, "--format=User,Account,Comment").stdout })
	}
	// It is theirs to cancel, and nobody's but an operator's else.
	second := other.run(t, false, one, append([]string{submit[0], "--hold"}, submit[1:]...)...)
	if out := other.run(t, false, "", "cancel", strings.TrimSpace(second.stdout)); out.code != 0 {
		t.Errorf("cancel of one's own sweep: exit %d\n%s", out.code, out.stderr)
	}
}

// TestQuota: a sweep above a quota is refused with exit status 3, and told by how
// much.
func TestQuota(t *testing.T) {
	env.must(t, "sbench", "quota", "set", "0.001", "--account", "ml", "--period", "day")
	out := env.input(t, simSweep(t, "costly", 1, "[20/s]", "1s"), "sbench", "submit", "-")
	env.must(t, "sbench", "quota", "set", "none", "--account", "ml", "--period", "day")
	refused(t, out, " too many") // and how many before it
}

// TestCronAndCost: a schedule that is run by hand submits one sweep, in the owner's
// name, and none while that one still runs; what it cost is what sacct says.
func TestCronAndCost(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cron.yaml")
	// It still runs when the schedule is asked to run again.
	if err := os.WriteFile(file, []byte(simSweep(t, "scheduled", 1, "[20/s]", "12s")), 0o644); err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Add(-time.Minute)
	env.must(t, "sbench", "cron", "add", "e2e", "--schedule", "0 4 29 2 *", file)
	defer env.must(t, "sbench", "cron", "rm", "e2e")
	words := strings.Fields(env.must(t, "sbench", "cron", "run", "e2e"))
	again := env.exec(t, "sbench", "cron", "run", "e2e")
	if len(words) == 0 {
		t.Fatal("cron run printed no number")
	}
	id := words[len(words)-1]
	sweep := env.settle(t, id)
	if sweep.Name != "scheduled" {
		t.Errorf("%+v", sweep.SweepSummary)
	}
	cron := decode[api.Cron](t, env.must(t, "sbench", "cron", "show", "e2e", "--json"))
	submitted := 0
	for _, f := range cron.Firings {
		if f.State == "submitted" {
			submitted++
		}
	}
	if submitted != 1 {
		t.Errorf("%d sweeps were submitted: %+v\n%s%s", submitted, cron.Firings, again.stdout, again.stderr)
	}
	wantCost(t, id, begin)
}

// wantCost: the GPU-seconds of a sweep of one run and one GPU are sacct's.
func wantCost(t *testing.T, id string, begin time.Time) {
	t.Helper()
	run := env.runs(t, id)[0]
	var row api.CostRow
	poll(t, 5*time.Minute, "the cost of sweep "+id, func() bool {
		report := decode[api.CostReport](t, env.must(t, "sbench", "cost", "--start", begin.UTC().Format(time.RFC3339), "--end",
			time.Now().Add(time.Minute).UTC().Format(time.RFC3339), "--by", "sweep", "--json"))
		for _, r := range report.Rows {
			// A report speaks of the starts that the accounting has told of so far.
			if r.Sweep != nil && *r.Sweep == id && r.Complete && r.RunStarts >= len(run.Attempts) {
				row = r
				return true
			}
		}
		return false
	}, func() string { return env.exec(t, "sbench", "cost", "--by", "sweep").stdout })
	held := int64(0)
	seen := map[int64]bool{}
	for _, a := range run.Attempts {
		if seen[a.JobIDRaw] {
			continue
		}
		seen[a.JobIDRaw] = true
		said := strings.TrimSpace(env.must(t, "sacct", "-D", "-X", "-n", "-P", "-j", strconv.FormatInt(a.JobIDRaw, 10), "--format=ElapsedRaw"))
		for line := range strings.Lines(said) {
			seconds, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil {
				t.Fatalf("sacct said %q", said)
			}
			held += seconds // of one GPU
		}
	}
	if row.BillableGPUSeconds != held || held == 0 || row.RunStarts != len(run.Attempts) {
		t.Errorf("%d GPU-seconds of %d starts, sacct says %d of %d", row.BillableGPUSeconds, row.RunStarts, held, len(run.Attempts))
	}
}
