package devcluster

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

// maxJobCount is slurmctld's; array tasks count, ended jobs do for MinJobAge.
const maxJobCount = 100000

//go:embed slurm.conf.tmpl
var slurmConfTemplate string

// nodeKind describes the nodes of one kind.
type nodeKind struct {
	prefix    string
	count     int
	hardware  string // Slurm's description of sockets, memory and GRES
	features  [2]string
	gresType  string
	gpus      int
	partition string
}

func (n Nodes) kinds() []nodeKind {
	return []nodeKind{
		{"gpu", n.GPU, "Sockets=2 CoresPerSocket=48 RealMemory=2000000 Gres=gpu:h100:8", [2]string{"h100,nvl_full,isl1", "h100,nvl_pair,isl2"}, "h100", 8, gpuPartition},
		{"l4-", n.L4, "Sockets=1 CoresPerSocket=32 RealMemory=256000 Gres=gpu:l4:4", [2]string{"l4", "l4"}, "l4", 4, "l4"},
		{"cpu", n.CPU, "Sockets=2 CoresPerSocket=32 RealMemory=512000", [2]string{"cpu", "cpu"}, "", 0, "cpu"},
	}
}

// names lists all nodes in order.
func (n Nodes) names() []string {
	var names []string
	for _, k := range n.kinds() {
		for i := 1; i <= k.count; i++ {
			names = append(names, k.prefix+strconv.Itoa(i))
		}
	}
	return names
}

// hostRange is Slurm's notation for prefix[from-to], "" if empty.
func hostRange(prefix string, from, to int) string {
	switch {
	case from > to:
		return ""
	case from == to:
		return prefix + strconv.Itoa(from)
	default:
		return fmt.Sprintf("%s[%d-%d]", prefix, from, to)
	}
}

// leaf lists the nodes below one of the two leaf switches: each kind is halved.
func (n Nodes) leaf(i int) string {
	var parts []string
	for _, k := range n.kinds() {
		half := (k.count + 1) / 2
		r := hostRange(k.prefix, 1, half)
		if i == 2 {
			r = hostRange(k.prefix, half+1, k.count)
		}
		if r != "" {
			parts = append(parts, r)
		}
	}
	return strings.Join(parts, ",")
}

type slurmConfData struct {
	Name, Host, User, Dir string
	Port, DbdPort         int
	MaxArraySize          int
	MaxJobCount           int
	Accounting            bool
	NodeLines, PartLines  []string
}

func (c *Cluster) slurmConf() (string, error) {
	host, err := shortHostname()
	if err != nil {
		return "", err
	}
	o := c.opts
	d := slurmConfData{
		Name: o.Name, Host: host, User: currentUser(), Dir: o.Dir, Port: c.port, DbdPort: c.port + 1, MaxArraySize: o.MaxArraySize,
		MaxJobCount: maxJobCount, Accounting: !o.NoAccounting,
	}
	port, def := c.port+2, "Default=YES "
	for _, k := range o.Nodes.kinds() {
		if k.count == 0 {
			continue
		}
		half := (k.count + 1) / 2
		for leaf, r := range [][2]int{{1, half}, {half + 1, k.count}} {
			if n := r[1] - r[0] + 1; n > 0 {
				d.NodeLines = append(d.NodeLines, fmt.Sprintf("NodeName=%s NodeHostname=%s NodeAddr=127.0.0.1 Port=%s %s Feature=%s",
					hostRange(k.prefix, r[0], r[1]), host, hostRange("", port, port+n-1), k.hardware, k.features[leaf]))
				port += n
			}
		}
		weights := ""
		if k.gpus > 0 && d.Accounting { // without slurmdbd a TRES gres/gpu is a fatal error
			weights = fmt.Sprintf(" TRESBillingWeights=CPU=0.25,Mem=0.01G,GRES/gpu:%s=%d", k.gresType, 2*k.gpus)
		}
		d.PartLines = append(d.PartLines, fmt.Sprintf("PartitionName=%s Nodes=%s %sMaxTime=2-00:00:00 DefaultTime=01:00:00%s",
			k.partition, hostRange(k.prefix, 1, k.count), def, weights))
		def = ""
	}
	tmpl, err := template.New("slurm.conf").Parse(slurmConfTemplate)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = tmpl.Execute(&out, d)
	return out.String(), err
}

func (c *Cluster) topologyConf() string {
	leaf1, leaf2 := c.opts.Nodes.leaf(1), c.opts.Nodes.leaf(2)
	if leaf2 == "" {
		return "SwitchName=leaf1 Nodes=" + leaf1 + "\n"
	}
	return "SwitchName=leaf1 Nodes=" + leaf1 + "\nSwitchName=leaf2 Nodes=" + leaf2 + "\nSwitchName=spine Switches=leaf[1-2]\n"
}

// gresConf lists device files whose names end in the index that jobs then see
// in CUDA_VISIBLE_DEVICES. Links to /dev/null are the one form that Slurm
// accepts without root and that sets all variables.
func (c *Cluster) gresConf() string {
	var b strings.Builder
	for _, k := range c.opts.Nodes.kinds() {
		if k.count > 0 && k.gpus > 0 {
			fmt.Fprintf(&b, "NodeName=%s Name=gpu Type=%s File=%s[0-%d]\n",
				hostRange(k.prefix, 1, k.count), k.gresType, c.path("gpu", "nvidia"), k.gpus-1)
		}
	}
	return b.String()
}

func (c *Cluster) slurmdbdConf() string {
	return fmt.Sprintf(`DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=%d
SlurmUser=%s
AuthType=auth/munge
AuthInfo=socket=%s
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
LogFile=%s
PidFile=%s
TrackWCKey=yes
`, c.port+1, currentUser(), c.path("run", "munge.sock"), c.path("log", "slurmdbd.log"), c.path("run", "slurmdbd.pid"))
}

// writeConfig lays the directory out and writes every configuration file.
func (c *Cluster) writeConfig() error {
	for _, d := range []string{"run", "etc", "log", "state", "spool", "gpu", "spool-sbench", "results", "cache", "models", "images"} {
		if err := c.mkdir(d, 0o755); err != nil {
			return err
		}
	}
	for _, d := range []string{"key", "db"} {
		if err := c.mkdir(d, 0o700); err != nil {
			return err
		}
	}
	for i := range 8 {
		if err := os.Symlink("/dev/null", c.path("gpu", "nvidia"+strconv.Itoa(i))); err != nil && !os.IsExist(err) {
			return err
		}
	}
	key := c.path("key", "munge.key")
	if _, err := os.Stat(key); err != nil {
		secret := make([]byte, 128)
		_, _ = rand.Read(secret) // never fails
		if err := writeFile(key, secret, 0o600); err != nil {
			return err
		}
	}
	slurmConf, err := c.slurmConf()
	if err != nil {
		return fmt.Errorf("write slurm.conf: %w", err)
	}
	siteFile, err := c.siteFile()
	if err != nil {
		return fmt.Errorf("write site.yaml: %w", err)
	}
	files := []struct {
		name, text string
		mode       os.FileMode
	}{
		{"slurm.conf", slurmConf, 0o644},
		{"topology.conf", c.topologyConf(), 0o644},
		{"gres.conf", c.gresConf(), 0o644},
		{"cgroup.conf", "ConstrainRAMSpace=yes\n", 0o644}, // read only if a cgroup plugin is configured
		{"slurmdbd.conf", c.slurmdbdConf(), 0o600},
		{"site.yaml", siteFile, 0o644},
		{"sbenchd.yaml", c.daemonFile(), 0o600},
	}
	for _, f := range files {
		if err := writeFile(c.path("etc", f.name), []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) mkdir(name string, mode os.FileMode) error {
	path := c.path(name)
	if err := os.MkdirAll(path, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode) // whatever the umask
}

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.opts.Dir}, elem...)...)
}

func shortHostname() (string, error) {
	h, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the host's name: %w", err)
	}
	h, _, _ = strings.Cut(h, ".")
	return h, nil
}

// currentUser is the caller's name or, where the name service knows none, uid.
func currentUser() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return strconv.Itoa(os.Geteuid())
}
