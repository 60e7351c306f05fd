package devcluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Defaults of Options.
const (
	DefaultName         = "private"
	DefaultMaxArraySize = 1001
	// maxDirLength leaves room for DIR/run/pg/.s.PGSQL.5432 and DIR/db/mysqld.sock
	// in the 107 bytes of a Unix socket's path.
	maxDirLength = 80
	// portStride is the size of a block of ports: slurmctld, slurmdbd, one per node.
	portStride   = 64
	firstPort    = 17000
	lastPort     = 32000 // below the usual range of ephemeral ports
	maxNodes     = portStride - 2
	gpuPartition = "gpu"
)

// OptionError: the options cannot be meant so.
type OptionError struct{ err error }

// Error says which option and why.
func (e *OptionError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *OptionError) Unwrap() error { return e.err }

func optionErrorf(format string, args ...any) error {
	return &OptionError{fmt.Errorf(format, args...)}
}

// Nodes says how many nodes of each kind the cluster has.
type Nodes struct {
	GPU int `json:"gpu"` // gpu1…: gpu:h100:8, 96 CPUs
	L4  int `json:"l4"`  // l4-1…: gpu:l4:4, 32 CPUs
	CPU int `json:"cpu"` // cpu1…: no GPU, 64 CPUs
}

// DefaultNodes is the cluster of the manual.
func DefaultNodes() Nodes { return Nodes{GPU: 4, L4: 2, CPU: 2} }

// ParseNodes reads "gpu=4,l4=2,cpu=2"; a kind that is not named has no nodes.
func ParseNodes(s string) (Nodes, error) {
	var n Nodes
	for _, part := range strings.Split(s, ",") {
		kind, count, ok := strings.Cut(part, "=")
		v, err := strconv.Atoi(count)
		if !ok || err != nil || v < 0 || v > maxNodes {
			return Nodes{}, optionErrorf("nodes %q: want kind=count, as in gpu=4,l4=2,cpu=2", s)
		}
		switch kind {
		case "gpu":
			n.GPU = v
		case "l4":
			n.L4 = v
		case "cpu":
			n.CPU = v
		default:
			return Nodes{}, optionErrorf("nodes %q: unknown kind %q: the kinds are gpu, l4 and cpu", s, kind)
		}
	}
	return n, n.check()
}

func (n Nodes) check() error {
	switch total := n.GPU + n.L4 + n.CPU; {
	case total < 1:
		return optionErrorf("a cluster needs at least one node")
	case total > maxNodes:
		return optionErrorf("%d nodes: at most %d fit into a block of ports", total, maxNodes)
	}
	return nil
}

// Options says what to bring up. Only Dir is required.
type Options struct {
	// Dir holds everything. It is made absolute; at most 80 bytes, because Unix
	// sockets lie in it.
	Dir string `json:"dir"`
	// Name is Slurm's ClusterName and the name of the site; default "private".
	Name string `json:"name"`
	// BasePort is slurmctld's port; the next ones are slurmdbd's and the nodes'.
	// 0 takes the first free block.
	BasePort int `json:"base_port"`
	// Nodes is the size; zero means DefaultNodes.
	Nodes Nodes `json:"nodes"`
	// MaxArraySize is Slurm's: it caps the array *index* at one less.
	MaxArraySize int `json:"max_array_size"`
	// Users are further local users to give an account to. Only root's cluster
	// can run their jobs.
	Users []string `json:"users,omitempty"`
	// NoAccounting leaves slurmdbd and its database out. sacct then fails.
	NoAccounting bool `json:"no_accounting"`
	// NoDaemon leaves sbenchd out; NoDatabase PostgreSQL (and sbenchd).
	NoDaemon   bool `json:"no_daemon"`
	NoDatabase bool `json:"no_database"`
	// NoNamespaces runs slurmd without a PID and UTS namespace of its own, as on
	// hosts that forbid them.
	NoNamespaces bool `json:"no_namespaces"`
	// Binaries is the folder of sbenchd, sbench-runner and sbench-gpu; default
	// the folder of the running executable.
	Binaries string `json:"binaries"`
	// Apptainer is the container tool or its stand-in; default what is on PATH
	// or beside the binaries. The site file leaves it out where there is none.
	Apptainer string `json:"apptainer,omitempty"`
}

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// withDefaults returns o completed and checked.
func (o Options) withDefaults() (Options, error) {
	if o.Dir == "" {
		return o, optionErrorf("no directory given")
	}
	dir, err := cleanDir(o.Dir)
	if err != nil {
		return o, err
	}
	o.Dir = dir
	if o.Name == "" {
		o.Name = DefaultName
	}
	if !namePattern.MatchString(o.Name) {
		return o, optionErrorf("cluster name %q: want lower-case letters, digits, - and _", o.Name)
	}
	if o.Nodes == (Nodes{}) {
		o.Nodes = DefaultNodes()
	}
	if err := o.Nodes.check(); err != nil {
		return o, err
	}
	if o.MaxArraySize == 0 {
		o.MaxArraySize = DefaultMaxArraySize
	}
	if o.MaxArraySize < 2 || o.MaxArraySize > maxJobCount {
		return o, optionErrorf("max array size %d: want 2 to %d", o.MaxArraySize, maxJobCount)
	}
	if o.BasePort != 0 && (o.BasePort < 1024 || o.BasePort > 65535-portStride) {
		return o, optionErrorf("base port %d: want 1024 to %d", o.BasePort, 65535-portStride)
	}
	if o.NoDatabase {
		o.NoDaemon = true
	}
	if o.Binaries == "" {
		exe, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("find the running executable: %w", err)
		}
		o.Binaries = filepath.Dir(exe)
	}
	if o.Binaries, err = filepath.Abs(o.Binaries); err != nil {
		return o, err
	}
	if o.Apptainer == "" {
		o.Apptainer = findApptainer(o.Binaries)
	}
	return o, nil
}

// cleanDir returns dir absolute with its links resolved as far as it exists, so
// that the same directory has one name in /proc and in every configuration.
func cleanDir(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	rest := ""
	for parent := abs; ; parent = filepath.Dir(parent) {
		real, err := filepath.EvalSymlinks(parent)
		if err == nil {
			abs = filepath.Join(real, rest)
			break
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		rest = filepath.Join(filepath.Base(parent), rest)
	}
	if len(abs) > maxDirLength {
		return "", optionErrorf("directory %s: %d bytes are too many for the Unix sockets in it: at most %d", abs, len(abs), maxDirLength)
	}
	if strings.ContainsAny(abs, " \t\r\n\"'\\#,=%;$`[]") {
		return "", optionErrorf("directory %s: Slurm's configuration files cannot hold blanks, quotes or any of \\ # , = %% ; $ [ ] in a path", abs)
	}
	return abs, nil
}

func findApptainer(binaries string) string {
	for _, tool := range []string{"apptainer", "singularity"} {
		if path, err := lookPath(tool); err == nil {
			return path
		}
	}
	for _, path := range []string{
		filepath.Join(binaries, "apptainer-standin"),
		filepath.Join(binaries, "..", "tests", "engine", "apptainer-standin"),
	} {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return filepath.Clean(path)
		}
	}
	return ""
}
