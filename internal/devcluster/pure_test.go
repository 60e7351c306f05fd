package devcluster

import (
	"errors"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/site"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestParseNodes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		in   string
		want Nodes
		ok   bool
	}{
		{"gpu=4,l4=2,cpu=2", DefaultNodes(), true},
		{"cpu=1", Nodes{CPU: 1}, true},
		{"gpu=60,cpu=2", Nodes{GPU: 60, CPU: 2}, true},
		{"gpu=60,cpu=3", Nodes{}, false},
		{"gpu=0", Nodes{}, false},
		{"gpu=-1", Nodes{}, false},
		{"gpu", Nodes{}, false},
		{"tpu=1", Nodes{}, false},
		{"", Nodes{}, false},
	} {
		got, err := ParseNodes(test.in)
		if (err == nil) != test.ok || (test.ok && got != test.want) {
			t.Errorf("ParseNodes(%q) = %+v, %v", test.in, got, err)
		}
		if option := (*OptionError)(nil); err != nil && !errors.As(err, &option) {
			t.Errorf("ParseNodes(%q): %T is no OptionError", test.in, err)
		}
	}
}

func TestCleanDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	got, err := cleanDir(filepath.Join(link, "not", "yet"))
	if want := filepath.Join(dir, "not", "yet"); err != nil || got != want {
		t.Errorf("through a link: %q, %v; want %q", got, err, want)
	}
	for _, bad := range []string{"/tmp/" + strings.Repeat("x", 80), "/tmp/with blank", "/tmp/a=b", "/tmp/a#b", "/tmp/a,b", "/tmp/%n", "/tmp/a\nb"} {
		if got, err := cleanDir(bad); err == nil {
			t.Errorf("cleanDir(%q) = %q", bad, got)
		}
	}
}

func TestConfigurationGolden(t *testing.T) {
	t.Parallel()
	host, err := shortHostname()
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]Options{
		"default": {Nodes: DefaultNodes()},
		"small":   {Nodes: Nodes{GPU: 1, CPU: 1}, NoAccounting: true},
	} {
		o.Dir, o.Name, o.MaxArraySize = "/srv/c", "private", 1001
		o.Binaries, o.Apptainer = "/opt/sbench/bin", "/usr/bin/apptainer"
		c := &Cluster{opts: o, port: 17000}
		conf, err := c.slurmConf()
		if err != nil {
			t.Fatal(err)
		}
		siteFile, err := c.siteFile()
		if err != nil {
			t.Fatal(err)
		}
		if loaded, faults := site.Load([]byte(siteFile), "site.yaml"); loaded == nil || len(faults) > 0 {
			t.Errorf("%s: site.yaml: %v", name, faults)
		}
		conf = strings.ReplaceAll(conf, "="+host, "=HOST")
		for _, key := range []string{"SlurmUser=", "SlurmdUser="} {
			conf = strings.ReplaceAll(conf, key+currentUser(), key+"USER")
		}
		got := strings.Join([]string{
			"--- slurm.conf", conf, "--- topology.conf", c.topologyConf(), "--- gres.conf", c.gresConf(),
			"--- slurmdbd.conf", strings.ReplaceAll(c.slurmdbdConf(), "SlurmUser="+currentUser(), "SlurmUser=USER"),
			"--- site.yaml", regexp.MustCompile(`(?m)^  bin: .*$`).ReplaceAllString(siteFile, "  bin: BIN"), "--- sbenchd.yaml", c.daemonFile(),
		}, "\n")
		golden := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (rewrite with -update):\n%s", golden, diff)
		}
	}
}

// TestMariaDBTemporaryFolder: a server that starts empties its tmpdir of others' tables.
func TestMariaDBTemporaryFolder(t *testing.T) {
	t.Parallel()
	c := &Cluster{opts: Options{Dir: "/srv/c"}}
	if argv := c.mariadbd("/srv/c/db/data.new"); !slices.Contains(argv, "--tmpdir=/srv/c/db") {
		t.Errorf("two clusters share a tmpdir: %q", argv)
	}
}

func TestReservePorts(t *testing.T) {
	t.Parallel()
	const n = 8
	var blocks [n]*portBlock
	var wg sync.WaitGroup
	for i := range blocks {
		wg.Go(func() {
			b, err := reservePorts(0, 0, 10)
			if err != nil {
				t.Error(err)
			}
			blocks[i] = b
		})
	}
	wg.Wait()
	seen := map[int]bool{}
	for _, b := range blocks {
		if b == nil {
			continue
		}
		if seen[b.base] {
			t.Errorf("block %d was given out twice", b.base)
		}
		seen[b.base] = true
		defer b.release()
	}
	if _, err := reservePorts(blocks[0].base, 0, 10); err == nil {
		t.Error("a block that another holds was given out on demand")
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	p, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	// The port below may be anybody's: which of the two is named does not matter.
	if _, err := reservePorts(p-1, 0, 2); err == nil || !strings.Contains(err.Error(), "is taken") {
		t.Errorf("a block with a port in use: %v", err)
	}
}

func TestProcessIdentity(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := identify(cmd.Process.Pid)
	if err != nil || !p.alive() {
		t.Fatalf("a living process: %+v, %v", p, err)
	}
	for _, other := range []process{{p.PID, p.Start + 1, p.Boot}, {p.PID, p.Start, "another"}} {
		if other.alive() {
			t.Errorf("%+v is taken for %+v", other, p)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Not yet waited for, it is a zombie: as good as gone.
	if !waitFor(startLimit, func() bool { return !p.alive() }) {
		t.Error("a zombie counts as alive")
	}
	_ = cmd.Wait()
}

func TestDiagnose(t *testing.T) {
	dir := t.TempDir()
	old := "#!/bin/sh\necho slurm-wlm 20.11.9\n"
	if err := os.WriteFile(filepath.Join(dir, "slurmctld"), []byte(old), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	names := map[string]Check{}
	for _, c := range Diagnose(t.Context(), filepath.Join(dir, "not", "yet")) {
		names[c.Name] = c
		if c.For == "" || (c.Failed() && c.Fix == "") {
			t.Errorf("check %+v says too little", c)
		}
	}
	if c := names["slurmctld"]; c.Status != CheckTooOld || c.Found != "20.11.9" || !strings.Contains(c.Fix, "slurmctld") {
		t.Errorf("an old slurmctld: %+v", c)
	}
	if c := (program{name: "x", commands: []string{"no-such-program"}, debian: "some-package"}).check(t.Context()); c.Status != CheckMissing || c.Fix == "" {
		t.Errorf("a missing program: %+v", c)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"slurm-wlm 22.05.8":                 "22.05.8",
		"munge-0.5.15 (2022-06-22)":         "0.5.15",
		"mariadbd  Ver 10.11.19-MariaDB-0+": "10.11.19",
		"postgres (PostgreSQL) 17":          "17",
		"v20.20.2":                          "20.20.2",
		"nothing":                           "",
	} {
		if got := firstVersion(text); got != want {
			t.Errorf("firstVersion(%q) = %q, want %q", text, got, want)
		}
	}
	for _, test := range []struct {
		version, want string
		ok            bool
	}{{"22.05.8", "21.08", true}, {"21.08", "21.08", true}, {"21.07.9", "21.08", false}, {"9.6", "14", false}, {"14", "14", true}, {"14.1", "14", true}} {
		if got := atLeast(test.version, test.want); got != test.ok {
			t.Errorf("atLeast(%q, %q) = %v", test.version, test.want, got)
		}
	}
}
