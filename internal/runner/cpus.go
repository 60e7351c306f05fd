package runner

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// cpuSplit returns the client's and the engine's CPUs of those that the step may
// use: the client keeps the first ones. Where there are not enough for both, or
// the site reserves none, they share: nil, nil.
func cpuSplit(allowed []int, client int) (own, engine []int) {
	if client <= 0 || len(allowed) <= client {
		return nil, nil
	}
	return allowed[:client], allowed[client:]
}

func (a *attempt) split() (own, engine []int) {
	if len(a.fingerprint.Nodes) == 0 {
		return nil, nil
	}
	return cpuSplit(a.fingerprint.Nodes[0].CPUsAllowed, a.spec.Node.ClientCPUs)
}

func (a *attempt) engineCPUs() []int { _, engine := a.split(); return engine }

func (a *attempt) clientCPUs() []int { own, _ := a.split(); return own }

// splitCPUs binds this process's threads to the client's CPUs. Threads that are
// made later inherit it.
func (a *attempt) splitCPUs() {
	own := a.clientCPUs()
	if own == nil {
		return
	}
	var set unix.CPUSet
	for _, cpu := range own {
		set.Set(cpu)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		a.log.Warn("bind the client to its CPUs", "error", err)
		return
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil {
			a.log.Warn("bind the client to its CPUs", "error", err)
		}
	}
}
