package preflight

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"sbench/internal/fingerprint"
)

// placed reads what Slurm gave on this node, as far as the node can tell.
func (h Host) placed() fingerprint.Placed {
	p := fingerprint.Placed{
		TopologyAddress: h.Getenv("SLURM_TOPOLOGY_ADDR"), TopologyPattern: h.Getenv("SLURM_TOPOLOGY_ADDR_PATTERN"),
	}
	if n, err := strconv.Atoi(h.Getenv("SLURM_CPUS_ON_NODE")); err == nil {
		p.CPUsGiven = &n
	}
	if own, err := strconv.ParseInt(h.Getenv("SLURM_JOB_ID"), 10, 64); err == nil {
		p.OtherJobs = h.otherJobs(own)
	}
	return p
}

// stepd is how slurmstepd, of which every step on a node has one, calls itself:
// "slurmstepd: [4711.batch]", and with a plus for parts of heterogeneous jobs.
var stepd = regexp.MustCompile(`^slurmstepd: \[(\d+)[.+]`)

// otherJobs lists the jobs beside ours that have a step on this node. It is nil
// where not even ours is seen: then the node hides processes.
func (h Host) otherJobs(own int64) []int64 {
	files, _ := filepath.Glob(h.path("proc/[0-9]*/cmdline"))
	others, seen := []int64{}, false
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		m := stepd.FindSubmatch(bytes.TrimRight(text, "\x00"))
		if m == nil {
			continue
		}
		job, err := strconv.ParseInt(string(m[1]), 10, 64)
		switch {
		case err != nil:
		case job == own:
			seen = true
		case !slices.Contains(others, job):
			others = append(others, job)
		}
	}
	if !seen {
		return nil
	}
	slices.Sort(others)
	return others
}
