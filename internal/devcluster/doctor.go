package devcluster

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// CheckStatus is the verdict of a Check.
type CheckStatus string

// The verdicts. A warning is something that sbench does without.
const (
	CheckOK      CheckStatus = "ok"
	CheckWarning CheckStatus = "warning"
	CheckMissing CheckStatus = "missing"
	CheckTooOld  CheckStatus = "too_old"
)

// Check is one thing that the private cluster, the tests or the demo need.
type Check struct {
	Name   string      `json:"name"`
	Status CheckStatus `json:"status"`
	// Found is the version or what else was found; "" where nothing was.
	Found string `json:"found"`
	// Want is the least version, "" where any will do.
	Want string `json:"want"`
	// For says what needs it.
	For string `json:"for"`
	// Fix is the command, or else the words, that get it; "" where nothing is to
	// be done.
	Fix string `json:"fix"`
}

// Failed says that something is missing without which sbench cannot work here.
func (c Check) Failed() bool { return c.Status == CheckMissing || c.Status == CheckTooOld }

// program is a check of a command: there, and new enough.
type program struct {
	name     string
	commands []string // any one of them will do
	version  []string // arguments that print the version; nil: it cannot be asked
	env      []string
	want     string
	purpose  string
	debian   string // packages
	fedora   string
}

const (
	forCluster = "the private cluster"
	forDemo    = "the demo's engine"
	forImages  = "container images"
)

func programs(slurmConf string) []program {
	conf := []string{"SLURM_CONF=" + slurmConf}
	return []program{
		{"slurmctld", []string{"slurmctld"}, []string{"-V"}, nil, "21.08", forCluster, "slurmctld", "slurm-slurmctld"},
		{"slurmd", []string{"slurmd"}, []string{"-V"}, nil, "21.08", forCluster, "slurmd", "slurm-slurmd"},
		{"slurm clients", []string{"sbatch"}, []string{"--version"}, conf, "21.08", "submitting to Slurm", "slurm-client", "slurm"},
		{"slurmdbd", []string{"slurmdbd"}, nil, nil, "", "accounting of the private cluster", "slurmdbd", "slurm-slurmdbd"},
		{"munge", []string{"munged"}, []string{"--version"}, nil, "0.5.13", forCluster, "munge", "munge"},
		{"mariadb", []string{"mariadbd"}, []string{"--version"}, nil, "10.3", "accounting of the private cluster", "mariadb-server-core", "mariadb-server"},
		{"util-linux", []string{"unshare"}, []string{"--version"}, nil, "2.34", forCluster, "util-linux", "util-linux"},
		{"squashfs-tools", []string{"mksquashfs"}, []string{"-version"}, nil, "4.4", forImages, "squashfs-tools", "squashfs-tools"},
		{"node", []string{"node"}, []string{"--version"}, nil, "18", forDemo, "nodejs", "nodejs"},
		{"npm", []string{"npm"}, []string{"--version"}, nil, "", forDemo, "npm", "nodejs-npm"},
		{"c compiler", []string{"cc", "gcc"}, []string{"--version"}, nil, "", "building sbench-gpu", "gcc libc6-dev", "gcc glibc-devel"},
		{"shellcheck", []string{"shellcheck"}, []string{"--version"}, nil, "", "the tests of job scripts", "shellcheck", "ShellCheck"},
	}
}

// Diagnose looks at everything that is needed on this machine to run the private
// cluster, the tests and the demo. dir is where the cluster would be.
func Diagnose(ctx context.Context, dir string) []Check {
	// Slurm's clients do not even print their version without a configuration.
	conf := filepath.Join(os.TempDir(), "sbench-doctor-"+strconv.Itoa(os.Getpid())+".conf")
	if err := os.WriteFile(conf, []byte("ClusterName=doctor\nSlurmctldHost=localhost\n"), 0o600); err == nil {
		defer os.Remove(conf)
	}
	list := programs(conf)
	checks := make([]Check, len(list))
	var wg sync.WaitGroup
	for i, p := range list {
		wg.Go(func() { checks[i] = p.check(ctx) })
	}
	wg.Wait()
	return append(checks,
		checkPostgres(ctx), checkContainers(ctx), checkFFI(), checkNamespaces(ctx), checkFuse(), checkNetwork(), checkDisk(dir), checkClock())
}

func (p program) check(ctx context.Context) Check {
	c := Check{Name: p.name, Status: CheckOK, Want: p.want, For: p.purpose}
	path := ""
	for _, name := range p.commands {
		if found, err := lookPath(name); err == nil {
			path = found
			break
		}
	}
	switch {
	case path == "":
		c.Status = CheckMissing
	case p.version == nil:
		c.Found = path
	default:
		c.Found = askVersion(ctx, path, p.version, p.env)
		if c.Found == "" {
			c.Found = path
		} else if p.want != "" && !atLeast(c.Found, p.want) {
			c.Status = CheckTooOld
		}
	}
	if c.Status != CheckOK {
		c.Fix = installCommand(p.debian, p.fedora)
	}
	return c
}

var versionPattern = regexp.MustCompile(`\d+(\.\d+)+|\d+`)

// askVersion returns the first version number that the command prints.
func askVersion(ctx context.Context, path string, args, env []string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append([]string{"PATH=" + sbinPath(), "LC_ALL=C.UTF-8", "HOME=" + os.Getenv("HOME")}, env...)
	out, _ := cmd.CombinedOutput() // some print their version and then fail
	return firstVersion(string(out))
}

// firstVersion prefers a dotted number: "mariadbd  Ver 10.11.19-MariaDB".
func firstVersion(text string) string {
	fallback := ""
	for _, m := range versionPattern.FindAllString(text, -1) {
		if strings.Contains(m, ".") {
			return m
		}
		if fallback == "" {
			fallback = m
		}
	}
	return fallback
}

// atLeast compares dotted numbers.
func atLeast(version, want string) bool {
	v, w := strings.Split(version, "."), strings.Split(want, ".")
	for i := range w {
		a, b := 0, 0
		if i < len(v) {
			a, _ = strconv.Atoi(v[i])
		}
		b, _ = strconv.Atoi(w[i])
		if a != b {
			return a > b
		}
	}
	return true
}

// installCommand is for the distribution at hand.
func installCommand(debian, fedora string) string {
	sudo := ""
	if os.Geteuid() != 0 {
		sudo = "sudo "
	}
	if _, err := lookPath("apt-get"); err == nil {
		return sudo + "apt-get install -y --no-install-recommends " + debian
	}
	if _, err := lookPath("dnf"); err == nil && fedora != "" {
		return sudo + "dnf install -y " + fedora
	}
	return "install " + fedora + " (in Debian: " + debian + ") with this system's package manager"
}

func checkPostgres(ctx context.Context) Check {
	c := Check{Name: "postgresql", Want: "14", For: "all results", Status: CheckOK}
	dir, err := postgresDir()
	if err != nil {
		c.Status = CheckMissing
	} else {
		c.Found = askVersion(ctx, filepath.Join(dir, "postgres"), []string{"--version"}, nil)
		if !atLeast(c.Found, c.Want) {
			c.Status = CheckTooOld
		}
	}
	if c.Status != CheckOK {
		c.Fix = installCommand("postgresql", "postgresql-server")
	}
	return c
}

// checkContainers: apptainer, or bubblewrap under the stand-in for it.
func checkContainers(ctx context.Context) Check {
	c := Check{Name: "containers", For: forImages, Status: CheckOK}
	for _, tool := range []string{"apptainer", "singularity"} {
		if path, err := lookPath(tool); err == nil {
			c.Found = tool + " " + askVersion(ctx, path, []string{"--version"}, nil)
			return c
		}
	}
	if path, err := lookPath("bwrap"); err == nil {
		c.Status = CheckWarning
		c.Found = "no apptainer; bubblewrap " + askVersion(ctx, path, []string{"--version"}, nil) + " does for the private cluster"
		c.Fix = "see https://apptainer.org/docs/admin/main/installation.html"
		if _, err := lookPath("dnf"); err == nil {
			c.Fix = installCommand("", "apptainer")
		}
		return c
	}
	c.Status = CheckMissing
	c.Fix = installCommand("bubblewrap", "apptainer")
	return c
}

// checkFFI looks for the library through which the demo's engine calls its own.
func checkFFI() Check {
	c := Check{Name: "libffi8", For: forDemo, Status: CheckMissing}
	for _, pattern := range []string{
		"/usr/lib/*/libffi.so.8", "/lib/*/libffi.so.8", "/usr/lib64/libffi.so.8", "/usr/lib/libffi.so.8", "/usr/local/lib/libffi.so.8",
	} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			c.Status, c.Found = CheckOK, found[0]
			return c
		}
	}
	c.Fix = installCommand("libffi8", "libffi")
	return c
}

func checkNamespaces(ctx context.Context) Check {
	c := Check{Name: "namespaces", For: "nodes with their own hostname, containers without root", Status: CheckOK, Found: "allowed"}
	cmd := exec.CommandContext(ctx, "unshare", "--user", "--map-root-user", "--mount", "true")
	cmd.Env = []string{"PATH=" + sbinPath()}
	if cmd.Run() == nil && namespacesWork(ctx) {
		return c
	}
	c.Status, c.Found = CheckWarning, "not allowed"
	sudo := ""
	if os.Geteuid() != 0 {
		sudo = "sudo "
	}
	switch {
	case readSetting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		c.Fix = sudo + "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	case readSetting("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		c.Fix = sudo + "sysctl -w kernel.unprivileged_userns_clone=1"
	case readSetting("/proc/sys/user/max_user_namespaces") == "0":
		c.Fix = sudo + "sysctl -w user.max_user_namespaces=15000"
	default:
		c.Fix = "start this container with --privileged, or with a seccomp profile that allows unshare"
	}
	return c
}

func readSetting(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

func checkFuse() Check {
	c := Check{Name: "/dev/fuse", For: "apptainer without root", Status: CheckOK, Found: "/dev/fuse"}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		c.Status, c.Found, c.Fix = CheckWarning, "", "modprobe fuse (in a container: --device /dev/fuse)"
	}
	return c
}

// checkNetwork: with loopback addresses alone, the resolver finds no host and
// Slurm's daemons end.
func checkNetwork() Check {
	c := Check{Name: "network", For: forCluster, Status: CheckOK}
	if address, ok := nonLoopback(); ok {
		c.Found = address
		return c
	}
	c.Status, c.Found, c.Fix = CheckMissing, "only loopback addresses", "ip address add 10.255.255.1/32 dev lo"
	return c
}

func nonLoopback() (string, bool) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", false
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			return n.IP.String(), true
		}
	}
	return "", false
}

const wantDiskBytes = 2 << 30

func checkDisk(dir string) Check {
	c := Check{Name: "disk", For: "database, images and results in " + dir, Want: "2 GiB", Status: CheckOK}
	var st unix.Statfs_t
	parent := dir
	for unix.Statfs(parent, &st) != nil && parent != "/" && parent != "." {
		parent = filepath.Dir(parent)
	}
	free := st.Bavail * uint64(st.Bsize)
	c.Found = fmt.Sprintf("%.1f GiB free", float64(free)/(1<<30))
	if free < wantDiskBytes {
		c.Status, c.Fix = CheckMissing, "make room in "+parent+", or choose another directory with --dir"
	}
	return c
}

// checkClock: a clock that nobody corrects drifts from those of other nodes.
func checkClock() Check {
	c := Check{Name: "clock", For: "times that agree between nodes", Status: CheckOK, Found: "synchronized"}
	state, err := unix.Adjtimex(&unix.Timex{})
	switch {
	case time.Now().Year() < 2025:
		c.Status, c.Found, c.Fix = CheckMissing, time.Now().Format(time.DateTime), "set the clock: chronyd -q, or date --set"
	case err != nil:
		c.Status, c.Found = CheckWarning, "cannot be asked: "+err.Error()
	case state == unix.TIME_ERROR:
		c.Status, c.Found = CheckWarning, "not synchronized"
		c.Fix = installCommand("chrony", "chrony")
	}
	return c
}

// Platform names what the checks were made on.
func Platform() string {
	name := "Linux"
	for line := range strings.Lines(readSetting("/etc/os-release")) {
		if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			name = strings.Trim(strings.TrimSpace(v), `"`)
		}
	}
	return name + " " + runtime.GOARCH
}
