package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sbench/internal/batch"
	"sbench/internal/fingerprint"
	"sbench/internal/proc"
	"sbench/internal/runner/gpu"
	"sbench/internal/setting"
	"sbench/internal/spool"
)

// clocksFile is in the scratch folder while clocks are locked by the site's
// helper: who cleans up after a killed runner resets them by it.
const clocksFile = "clocks.json"

// lockedClocks are what this runner has locked on its node.
type lockedClocks struct {
	Command []string `json:"command"`
	UUIDs   []string `json:"uuids"`
	SM      int      `json:"sm_mhz"`
	Mem     int      `json:"mem_mhz"` // 0: left as it is
}

// pinnedClocks are the clocks that a setting pins, in MHz; 0 where it does not.
func pinnedClocks(e setting.Environment) (sm, mem int) {
	read := func(pin string) int {
		var n int
		if _, err := fmt.Sscanf(pin, "%dMHz", &n); err != nil {
			return 0
		}
		return n
	}
	return read(e.SMClock), read(e.MemClock)
}

// gpuFreq is what srun --gpu-freq is told for a setting; "" for nothing.
func gpuFreq(node batch.Node, e setting.Environment) string {
	sm, mem := pinnedClocks(e)
	if node.Clocks.Method != batch.ClocksSlurm {
		return ""
	}
	var parts []string
	if sm > 0 {
		parts = append(parts, fmt.Sprint(sm))
	}
	if mem > 0 {
		parts = append(parts, fmt.Sprintf("memory=%d", mem))
	}
	return strings.Join(parts, ",")
}

func (a *attempt) locker(command []string) gpu.Locker {
	return gpu.Locker{Command: command, Deadline: orDefault(a.spec.Node.Deadlines.GPU, 20*time.Second), Supervisor: a.supervisor}
}

// applyClocks locks pinned clocks of the node's assigned devices by the site's
// helper, once, and notes on every device what it is locked at: NVML has no
// question for that. Whether the device keeps to it is checked under load. Where
// the lock fails the pin is compared with what the device says, and refuses.
func (a *attempt) applyClocks(ctx context.Context, n fingerprint.Node) {
	sm, mem := pinnedClocks(a.setting.Environment)
	if a.spec.Node.Clocks.Method != batch.ClocksHelper || sm == 0 || n.GPUs == nil {
		return
	}
	if a.clocks == nil {
		if err := a.lockClocks(ctx, sm, mem, n.Assigned()); err != nil {
			a.log.Error("the clocks could not be locked", "error", err)
			return
		}
	}
	for i := range n.GPUs.Devices {
		d := &n.GPUs.Devices[i]
		if d.UUID == nil || !slices.Contains(a.clocks.UUIDs, *d.UUID) {
			continue
		}
		target := int64(a.clocks.SM)
		d.Clocks.SMLocked = &target
		if a.clocks.Mem > 0 {
			target := int64(a.clocks.Mem)
			d.Clocks.MemLocked = &target
		}
	}
}

func (a *attempt) lockClocks(ctx context.Context, sm, mem int, devices []fingerprint.GPU) error {
	locked := &lockedClocks{Command: a.spec.Node.Clocks.Helper, SM: sm, Mem: mem}
	for _, d := range devices {
		if d.UUID == nil {
			return fmt.Errorf("gpu %d has no UUID", d.Index)
		}
		locked.UUIDs = append(locked.UUIDs, *d.UUID)
	}
	if len(locked.UUIDs) == 0 {
		return errors.New("no device is assigned")
	}
	text, err := json.Marshal(locked)
	if err != nil {
		return err
	}
	// First, so that a runner which is killed now leaves the note.
	if err := os.WriteFile(filepath.Join(a.dirs.temp, clocksFile), text, 0o600); err != nil {
		return err
	}
	if err := a.locker(locked.Command).Lock(ctx, sm, mem, locked.UUIDs); err != nil {
		// Some of the devices may be locked.
		return errors.Join(err, a.locker(locked.Command).Reset(context.WithoutCancel(ctx), locked.UUIDs))
	}
	a.clocks = locked
	a.log.Info("locked the clocks", "sm_mhz", sm, "mem_mhz", mem, "gpus", locked.UUIDs)
	return nil
}

// resetClocks undoes it, on every way out.
func (a *attempt) resetClocks() error {
	if a.clocks == nil {
		return nil
	}
	// Whatever ended the run, this has to be done.
	if err := a.locker(a.clocks.Command).Reset(context.Background(), a.clocks.UUIDs); err != nil {
		return fmt.Errorf("the clocks are still locked: %w", err)
	}
	a.clocks = nil
	return nil
}

// resetAbandoned resets what a killed runner of this user locked.
func resetAbandoned(ctx context.Context, folder string) error {
	text, err := spool.ReadPlain(filepath.Join(folder, clocksFile), 1<<20)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var locked lockedClocks
	if err == nil {
		err = json.Unmarshal(text, &locked)
	}
	if err != nil {
		return fmt.Errorf("read what a killed runner locked: %w", err)
	}
	s, err := proc.New()
	if err != nil {
		return err
	}
	l := gpu.Locker{Command: locked.Command, Deadline: 20 * time.Second, Supervisor: s}
	if err = errors.Join(l.Reset(context.WithoutCancel(ctx), locked.UUIDs), s.Close()); err != nil {
		return fmt.Errorf("reset the clocks that a killed runner locked: %w", err)
	}
	return nil
}
