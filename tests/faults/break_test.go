package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// disk is the folder in which the batches and the results lie.
const disk = "disk"

// mount puts a small file system under the batches and results, where it may: with
// room for what that many runs leave, so that it is full only when it is filled.
func (m *matrix) mount(runs int) {
	place := filepath.Join(m.dir, disk)
	if err := syscall.Mount("tmpfs", place, "tmpfs", 0, fmt.Sprintf("size=%dm", 128+runs/4)); err != nil {
		m.Logf("mount: %v", err)
		return
	}
	m.small = place
}

// writeSite moves the site's spool and results onto that file system, and cuts
// the sweep into many arrays.
func (m *matrix) writeSite(runs int) {
	m.Helper()
	text, err := os.ReadFile(m.cluster.SiteFile())
	if err != nil {
		m.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		switch key, _, _ := strings.Cut(strings.TrimSpace(line), ":"); key {
		case "spool", "results":
			line = fmt.Sprintf("  %s: %s\n", key, filepath.Join(m.dir, disk, key))
		case "max_array_size":
			line = fmt.Sprintf("  %s: %d\n", key, 4)
		case "max_queue":
			line = fmt.Sprintf("  %s: %d\n", key, max(12, runs/4))
		}
		lines = append(lines, line)
	}
	m.site = filepath.Join(m.dir, "site.yaml")
	if err := os.WriteFile(m.site, []byte(strings.Join(lines, "")), 0o644); err != nil {
		m.Fatal(err)
	}
}

// pause waits for a while, and reports false where the test goes on to its end.
func pause(ctx context.Context, least, most time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(least + rand.N(most-least+1)):
		return true
	}
}

// breakThings breaks what is under the daemon, each thing once.
func (m *matrix) breakThings(ctx context.Context, long bool) {
	stop := 12 * time.Second
	if long {
		stop = 30 * time.Second
	}
	for i := 0; i < 7 && pause(ctx, 3*time.Second, 7*time.Second); i++ {
		switch i {
		case 0:
			m.kill(ctx, "slurmctld", "slurmctld")
		case 1:
			m.kill(ctx, "cpu1", "slurmd and its node")
		case 2:
			m.fill(ctx)
		case 3:
			m.kill(ctx, "postgres", "PostgreSQL")
		case 4:
			m.kill(ctx, "slurmdbd", "slurmdbd")
		case 5:
			m.kill(ctx, "cpu2", "slurmd and its node")
		case 6:
			m.stopController(ctx, stop)
		}
	}
}

// kill ends a component and brings it back a little later.
func (m *matrix) kill(ctx context.Context, name, row string) {
	m.breaking.Lock()
	defer m.breaking.Unlock()
	switch err := m.cluster.Kill(name, syscall.SIGKILL); {
	case err == nil:
		m.count(row)
		pause(ctx, 500*time.Millisecond, 4*time.Second)
	case errors.Is(err, os.ErrProcessDone): // it did not come back the last time
	default:
		m.Logf("kill %s: %v", name, err)
	}
	m.restart(name)
}

// stopController lets slurmctld hang.
func (m *matrix) stopController(ctx context.Context, most time.Duration) {
	m.breaking.Lock()
	defer m.breaking.Unlock()
	if m.cluster.Kill("slurmctld", syscall.SIGSTOP) != nil {
		m.restart("slurmctld")
		return
	}
	m.count(fmt.Sprintf("slurmctld stopped for %v", most))
	pause(ctx, most, most)
	_ = m.cluster.Kill("slurmctld", syscall.SIGCONT)
}

// fill leaves no byte for batches, claims, records and results for a while.
func (m *matrix) fill(ctx context.Context) {
	if m.small == "" {
		return
	}
	name := filepath.Join(m.small, "filler")
	f, err := os.Create(name)
	if err != nil {
		m.Logf("fill the disk: %v", err)
		return
	}
	defer os.Remove(name)
	defer f.Close()
	m.count("full disk")
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2] // to the last byte
		}
	}
	pause(ctx, 2*time.Second, 6*time.Second)
}

// killAfterSubmit kills slurmctld within five seconds after a job was submitted,
// when it has not saved its state: the ids are given away again.
func (m *matrix) killAfterSubmit(ctx context.Context) {
	seen := map[string]bool{}
	for pause(ctx, 200*time.Millisecond, 300*time.Millisecond) {
		fresh := false
		open, err := m.store.OpenBatches(ctx, m.cluster.Name())
		if err != nil {
			continue
		}
		for _, b := range open {
			if b.JobID != nil && !seen[b.Token] {
				seen[b.Token] = true
				fresh = true
			}
		}
		// Not every time: something must get through.
		if fresh && rand.IntN(3) == 0 && pause(ctx, 0, 4*time.Second) {
			m.kill(ctx, "slurmctld", "slurmctld within 5 s of a submit")
		}
	}
}
