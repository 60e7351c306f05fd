package sitecheck

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/api"
	"sbench/internal/site"
	"sbench/internal/slurm"
)

// lab is a site and commands that answer for a small cluster; sbatch runs the
// job at once, here.
type lab struct {
	*testing.T
	dir, bin string
	site     *site.Site
}

func (l *lab) command(name, script string) {
	l.Helper()
	if err := os.WriteFile(filepath.Join(l.bin, name), []byte("#!/bin/bash\n"+script), 0o755); err != nil {
		l.Fatal(err)
	}
}

const (
	nodeLines = `NodeName=gpu1 Arch=x86_64 CPUTot=96 AvailableFeatures=h100,nvlink ActiveFeatures=h100,nvlink Gres=gpu:h100:8(S:0-1) Version=22.05.8 OS=Linux 5.15 State=IDLE Partitions=gpu CfgTRES=cpu=96,gres/gpu=8
NodeName=gpu2 CPUTot=96 ActiveFeatures=h100 Gres=gpu:h100:8 State=DOWN+DRAIN Partitions=gpu Reason=bad fan [root@2026-01-01T00:00:00]
NodeName=cpu1 CPUTot=64 ActiveFeatures=cpu Gres=(null) State=MIXED Partitions=cpu`
	partitionLines = `PartitionName=gpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL MaxTime=2-00:00:00 State=UP TotalNodes=2
PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL MaxTime=UNLIMITED State=UP TotalNodes=1`
	configLines = `ClusterName             = c1
MaxArraySize            = 1001
MaxJobCount             = 10000
MinJobAge               = 300 sec
MessageTimeout          = 10 sec
KillWait                = 30 sec
AccountingStorageType   = accounting_storage/slurmdbd
SLURM_VERSION           = 22.05.8
TopologyPlugin          = topology/tree
Epilog                  = (null)`
)

func newLab(t *testing.T) *lab {
	t.Helper()
	dir := t.TempDir()
	l := &lab{T: t, dir: dir, bin: filepath.Join(dir, "slurm")}
	for _, name := range []string{"slurm", "spool", "results", "models", "images"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf(`site: v1
name: lab
cluster: c1
slurm: {bin: %[1]s/slurm}
defaults: {account: ml, partition: gpu}
priorities: {urgent: {qos: high}, normal: {qos: normal}, bulk: {qos: normal}}
partitions: {gpu: {max_time: 1d}, cpu: }
hardware:
  h100-sxm: {gres: "gpu:h100", gpus_per_node: 8, nodes: 2, cpus_per_node: 96, constraint: "h100", partition: gpu}
  cpu-x86: {nodes: 1, partition: cpu}
paths: {spool: %[1]s/spool, results: %[1]s/results, models: %[1]s/models, images: %[1]s/images, cache: %[1]s/cache, temp: %[1]s}
`, dir)
	st, list := site.Load([]byte(text), "lab.yaml")
	if st == nil {
		t.Fatal(list.Text())
	}
	l.site = st
	l.command("scontrol", fmt.Sprintf(`case "$*" in
--version) echo slurm 22.05.8;;
"show config") cat <<'X'
%s
X
;;
"show node"*) cat <<'X'
%s
X
;;
"show partition"*) cat <<'X'
%s
X
;;
*) exit 1;;
esac`, configLines, nodeLines, partitionLines))
	l.command("sacctmgr", `case "$*" in
*"show qos format=name"*) printf 'normal\nhigh\n';;
*"show user"*) all="$*"; name=${all#*name=}; name=${name%% *}; echo "$name|ml|None|ml||normal,high|normal|";;
esac`)
	l.command("sbatch", `if [ "$1" = --test-only ]; then echo "sbatch: Job 7 to start at now" >&2; exit 0; fi
n=$(cat `+dir+`/jobs 2>/dev/null || echo 6); n=$((n + 1)); echo $n >`+dir+`/jobs
for last; do :; done
grep -o 'job-name="[^"]*"' "$last" | cut -d'"' -f2 >`+dir+`/name.$n
SLURM_JOB_GPUS=0 bash "$last" >/dev/null 2>&1 &
echo $n`)
	l.command("squeue", `exit 0`)
	l.command("sacct", `exit 0`)
	l.command("scancel", `echo "$@" >`+dir+`/cancelled`)
	return l
}

func (l *lab) run(o Options) map[string]string {
	l.Helper()
	cluster := slurm.New(slurm.Config{BinDir: l.bin})
	found, err := Run(l.Context(), l.site, cluster, o)
	if err != nil {
		l.Fatal(err)
	}
	got, ok := map[string]string{}, true
	for _, p := range found.Checks {
		got[strings.TrimSpace(p.Check+" "+p.Subject)] = p.Verdict + ": " + p.Detail
		ok = ok && p.Verdict != api.VerdictFail
		if p.Verdict == api.VerdictFail && p.Todo == "" {
			l.Errorf("%s %s failed and nothing is said to be done", p.Check, p.Subject)
		}
	}
	if ok != found.OK {
		l.Errorf("ok is %v over %v", found.OK, got)
	}
	left, err := os.ReadDir(filepath.Join(l.dir, "spool", "site-check"))
	if err != nil && !os.IsNotExist(err) || len(left) > 0 {
		l.Errorf("left in the spool: %v, %v", left, err)
	}
	for _, name := range []string{"results", "models"} {
		if left, err := os.ReadDir(filepath.Join(l.dir, name)); err != nil || len(left) > 0 {
			l.Errorf("left in %s: %v, %v", name, left, err)
		}
	}
	return got
}

func (l *lab) expect(got map[string]string, want map[string]string) {
	l.Helper()
	for what, begin := range want {
		if !strings.HasPrefix(got[what], begin) {
			l.Errorf("%s: got %q, want %q", what, got[what], begin)
		}
	}
}

func TestRun_AsTheFileSays(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.site.Paths.Apptainer = filepath.Join(l.dir, "apptainer")
	if err := os.WriteFile(l.site.Paths.Apptainer, []byte("#!/bin/sh\necho apptainer version 1.3.4\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	got := l.run(Options{Job: true})
	l.expect(got, map[string]string{
		"commands": "pass: version 22.05.8", "controller": "pass: cluster c1", "partition gpu": "pass: up, 2 nodes, longest job 48h0m0s",
		"partition cpu": "pass: up, 1 nodes, longest job unlimited", "hardware h100-sxm": "pass: 2 nodes in partition gpu with 8 gpu:h100, 1 of them usable",
		"hardware cpu-x86": "pass: 1 nodes", "accounting": "pass", "qos high": "pass", "qos normal": "pass", "account ml": "pass",
		"limit max_array_size": "pass", "limit max_queue": "pass", "limit submit": "pass", "topology": "pass: topology/tree", "epilog": "pass: none is set",
		"path spool": "pass", "path results": "pass", "path models": "pass", "path images": "pass",
		"submission h100-sxm": "pass", "submission cpu-x86": "pass", "job h100-sxm": "pass: job 8 ran on", "job cpu-x86": "pass: job 7 ran on",
		"shared h100-sxm": "pass", "exec h100-sxm": "pass", "results h100-sxm": "pass", "cache h100-sxm": "pass", "temp h100-sxm": "pass",
		"models h100-sxm": "pass", "images h100-sxm": "pass", "container h100-sxm": "pass: on", "clock h100-sxm": "pass",
		// The fake queue forgets jobs at once.
		"clock controller": "unknown",
	})
	for what, verdict := range got {
		if strings.HasPrefix(verdict, "fail") {
			t.Errorf("%s: %s", what, verdict)
		}
	}
	if ids, err := os.ReadFile(filepath.Join(l.dir, "cancelled")); err != nil || string(ids) != "7 8\n" {
		t.Errorf("cancelled %q, %v", ids, err)
	}
	if diff := cmp.Diff("", got["gpu h100-sxm"]); diff != "" {
		t.Error(diff)
	}
}

func TestRun_OtherwiseThanTheFileSays(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.site
	s.Cluster = "moon"
	s.Partitions["night"] = site.Partition{}
	s.Partitions["gpu"] = site.Partition{MaxTime: 72 * time.Hour}
	s.Priorities["bulk"] = site.Priority{QOS: "scavenger"}
	s.Defaults.Account = "physics"
	s.Limits.MaxArraySize, s.Limits.MaxQueue = 5000, 20_000
	s.Hardware["a100-sxm"] = site.Hardware{GRES: "gpu:a100", GPUsPerNode: 8, Partition: "gpu"}
	s.Hardware["h100-pcie"] = site.Hardware{GRES: "gpu:h100", GPUsPerNode: 8, Constraint: "pcie&h100", Partition: "gpu"}
	s.Hardware["h100-sxm"] = site.Hardware{GRES: "gpu:h100", GPUsPerNode: 8, Nodes: 4, Partition: "gpu"}
	s.Hardware["cpu-x86"] = site.Hardware{CPUsPerNode: 128, Partition: "cpu"}
	s.Engine.Clocks = site.Clocks{Method: "helper", Helper: []string{"/none/sudo"}}
	s.Paths.Images = filepath.Join(l.dir, "nowhere")
	secret := filepath.Join(l.dir, "token")
	if err := os.WriteFile(secret, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.Secrets = map[string]string{"HF_TOKEN": secret}
	l.command("sbatch", `echo 'allocation failure: Requested node configuration is not available' >&2; exit 1`)
	got := l.run(Options{Job: true})
	l.expect(got, map[string]string{
		"controller": "fail: it is cluster c1, the site file says moon", "partition night": "fail: the cluster has no such partition",
		"partition gpu":        "fail: its longest job is 48h0m0s, the site file says 72h0m0s",
		"qos scavenger":        "fail: the cluster has no such QOS",
		"account physics":      "fail: the daemon's user",
		"hardware a100-sxm":    "fail: no node in partition gpu has 8 gpu:a100; gpu2 has gpu:h100:8",
		"hardware h100-pcie":   "fail: no node in partition gpu has 8 gpu:h100; gpu2 has features h100, which pcie&h100 does not fit",
		"hardware h100-sxm":    "fail: 2 nodes in partition gpu have 8 gpu:h100, the site file says 4",
		"hardware cpu-x86":     "fail: a node has 64 CPUs, the site file says 128",
		"limit max_array_size": "fail: Slurm's MaxArraySize is 1001, the site file says 5000", "limit max_queue": "fail",
		"epilog": "fail", "secret HF_TOKEN": "fail", "path images": "fail", "path spool": "pass",
		"submission h100-sxm": "fail: Slurm refuses a job for a whole node: Requested node configuration is not available",
	})
}

func TestRun_Nodes(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	delete(l.site.Hardware, "cpu-x86")
	// A node whose clock is off, that sees another spool and lacks most things.
	l.command("sbatch", `[ "$1" = --test-only ] && exit 0
for last; do :; done
dir=$(grep -o "'[^']*'" "$last" | sed -n 3p | tr -d "'")
printf 'time 1000000000.5\nhost far1\nnonce other\nresults no room\ncache ok\ntemp ok\nmodels ok\nimages x\nexec Permission denied\ncontainer missing nothing\ngpus none\n' >"$dir/h100-sxm.out"
echo 9`)
	l.expect(l.run(Options{Job: true}), map[string]string{
		"clock h100-sxm": "fail: far1 is at least", "shared h100-sxm": "fail: far1 read", "results h100-sxm": "fail: on far1: no room",
		"exec h100-sxm": "fail: on far1: Permission denied", "images h100-sxm": "fail", "cache h100-sxm": "pass", "gpu h100-sxm": "fail",
		"container h100-sxm": "unknown: on far1 nothing",
	})
	// A job that does not start tells nothing.
	l.command("sbatch", `[ "$1" = --test-only ] && exit 0; echo 9`)
	l.expect(l.run(Options{Job: true, Wait: 300 * time.Millisecond}), map[string]string{"job h100-sxm": "unknown: job 9 was not done within 300ms; no answer"})
	got := l.run(Options{})
	if got["job h100-sxm"] != "" || got["clock h100-sxm"] != "" || got["submission h100-sxm"] == "" {
		t.Errorf("without a job: %v", got)
	}
}

func TestRun_ControllerAway(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, name := range []string{"scontrol", "sacctmgr", "sbatch", "squeue", "sacct", "scancel"} {
		l.command(name, `[ "$1" = --version ] && { echo slurm 20.11.7; exit 0; }
echo "$0: error: Unable to contact slurm controller (connect failure)" >&2; exit 1`)
	}
	l.expect(l.run(Options{Job: true}), map[string]string{
		"commands": "fail: version 20.11.7", "controller": "fail", "partition gpu": "unknown", "hardware h100-sxm": "unknown", "accounting": "unknown",
		"path spool": "pass",
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, l.site, slurm.New(slurm.Config{BinDir: l.bin}), Options{}); err == nil {
		t.Error("a check that was cut off came to a verdict")
	}
}

func TestFeatures(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]bool{
		"": true, "h100": true, "h100&nvlink": true, "h100,nvlink": true, "h100&pcie": false, "pcie|nvlink": true, "pcie|l4": false, "[rack1|rack2]": true,
	} {
		if got := features(expression, []string{"h100", "nvlink"}); got != want {
			t.Errorf("%s: %v", expression, got)
		}
	}
}
