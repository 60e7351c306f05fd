package fingerprint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sbench/internal/result"
	"sbench/internal/setting"
)

// harmful are the throttle reasons that make a number a lie. Idle clocks, a
// requested clock or an application's own setting are not among them.
var harmful = []string{"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}

// Changes compares the node before the engine started with the node after the
// measurement, while the engine still runs. ownPIDs are the engine's processes.
// What changed makes the attempt invalid: each check is a harness check. Where
// there are no devices to ask the checks do not apply, and are not returned.
func Changes(s setting.Setting, before, after Fingerprint, ownPIDs []int) []result.Check {
	var checks []result.Check
	for i, b := range before.Nodes {
		if i >= len(after.Nodes) {
			return append(checks, harness("node_state", result.VerdictUnknown, "node "+b.Hostname+" could not be read again"))
		}
		a := after.Nodes[i]
		if b.BootID != a.BootID {
			checks = append(checks, harness("node_state", result.VerdictFail, "node "+b.Hostname+" was booted during the run"))
		}
		if b.GPUs == nil {
			continue
		}
		if a.GPUs == nil {
			return append(checks, harness("gpu_devices", result.VerdictUnknown, "the GPUs could not be read again: "+a.GPUError))
		}
		checks = append(checks, gpuChanges(s, b, a, ownPIDs)...)
	}
	return checks
}

func harness(name string, verdict result.Verdict, reason string) result.Check {
	return result.Check{Name: name, Kind: result.CheckHarness, Verdict: verdict, Reason: reason}
}

func gpuChanges(s setting.Setting, before, after Node, ownPIDs []int) []result.Check {
	var devices, ecc, rows, power, throttle, processes []string
	now := map[string]GPU{}
	for _, d := range after.GPUs.Devices {
		if d.UUID != nil {
			now[*d.UUID] = d
		}
	}
	unread := 0
	for _, b := range before.Assigned() {
		where := "gpu " + strconv.Itoa(b.Index)
		if b.UUID == nil {
			devices = append(devices, where+" has no UUID")
			continue
		}
		a, ok := now[*b.UUID]
		if !ok {
			devices = append(devices, where+" is gone")
			continue
		}
		if lost(b.ECCVolatile.Uncorrected, a.ECCVolatile.Uncorrected) {
			unread++
		} else if n := grown(b.ECCVolatile.Uncorrected, a.ECCVolatile.Uncorrected); n > 0 {
			ecc = append(ecc, fmt.Sprintf("%s had %d uncorrected memory errors", where, n))
		}
		if b.RemappedRows != nil && a.RemappedRows != nil && *b.RemappedRows != *a.RemappedRows {
			rows = append(rows, where+" remapped memory rows")
		}
		if n := grown(b.RetiredPages, a.RetiredPages); n > 0 {
			rows = append(rows, fmt.Sprintf("%s retired %d memory pages", where, n))
		}
		if x, y := b.Power.Enforced, a.Power.Enforced; x != nil && y != nil && *x != *y {
			power = append(power, fmt.Sprintf("%s: from %s to %s", where, watts(x), watts(y)))
		}
		if a.Throttle != nil {
			for _, reason := range *a.Throttle {
				if slices.Contains(harmful, reason) {
					throttle = append(throttle, where+": "+reason)
				}
			}
		}
		if s.Hardware.Placement != setting.PlacementCopacked {
			for _, p := range a.Processes {
				if !slices.Contains(ownPIDs, p.PID) {
					processes = append(processes, fmt.Sprintf("pid %d on %s", p.PID, where))
				}
			}
		}
	}
	eccCheck := verdict("gpu_ecc", ecc, "no uncorrected memory error during the run")
	if unread > 0 && len(ecc) == 0 {
		eccCheck = harness("gpu_ecc", result.VerdictUnknown, "ECC counts could not be read again")
	}
	return []result.Check{
		verdict("gpu_devices", devices, "the same devices before and after"),
		eccCheck,
		verdict("gpu_memory_repair", rows, "no memory row or page replaced"),
		verdict("gpu_power_limit", power, "the power limit did not change"),
		verdict("gpu_throttle", throttle, "no thermal or power slowdown at the end"),
		verdict("gpu_processes", processes, "no other process on the devices"),
	}
}

func verdict(name string, faults []string, good string) result.Check {
	if len(faults) > 0 {
		return harness(name, result.VerdictFail, strings.Join(faults, "; "))
	}
	return harness(name, result.VerdictPass, good)
}

// grown is by how much a count grew; 0 where either was not read.
func grown(before, after *int64) int64 {
	if before == nil || after == nil {
		return 0
	}
	return *after - *before
}

// lost reports whether a count that was read before cannot be read any more.
func lost(before, after *int64) bool { return before != nil && after == nil }

// IsHarmful reports whether a throttle reason makes a number a lie.
func IsHarmful(reason string) bool { return slices.Contains(harmful, reason) }
