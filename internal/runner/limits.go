package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sbench/internal/lifecycle"
	"sbench/internal/unit"
)

// checkLimits refuses nodes that give an engine less shared or lockable memory
// than the site asks for: NCCL fails in odd ways then, or is slow.
func (a *attempt) checkLimits() error {
	f := &failure{class: lifecycle.ExitDriftNode, signature: "drift limits"}
	need := func(what, node string, least int64, got *int64, none string) {
		switch {
		case least == 0, got != nil && *got >= least, got == nil && none == "":
			return
		case got == nil:
			f.reasons = append(f.reasons, fmt.Sprintf("ENV_DRIFT: %s of %s expected, %s on node %s", what, unit.FormatBytes(least), none, node))
		default:
			f.reasons = append(f.reasons, fmt.Sprintf("ENV_DRIFT: %s of %s expected, %s realized on node %s", what, unit.FormatBytes(least), unit.FormatBytes(*got), node))
		}
	}
	for _, n := range a.fingerprint.Nodes {
		need("shared memory", n.Hostname, a.spec.Node.MinSHM, n.ShmBytes, "could not be read")
		need("lockable memory", n.Hostname, a.spec.Node.MinMemlock, n.MemlockBytes, "") // nil is no limit
	}
	if len(f.reasons) == 0 {
		return nil
	}
	return f
}

// detachMounts takes away what is still mounted under a folder that is about to be
// removed: through a mount, something else would be.
func detachMounts(folder string) error {
	under, err := mountsUnder("/proc/self/mountinfo", folder)
	if err != nil {
		return err
	}
	slices.SortFunc(under, func(a, b string) int { return len(b) - len(a) }) // the innermost first
	var errs []error
	for _, m := range under {
		if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			errs = append(errs, fmt.Errorf("%s is still mounted: %w", m, err))
		}
	}
	return errors.Join(errs...)
}

// mountsUnder lists the mount points at or below a folder.
func mountsUnder(mountinfo, folder string) ([]string, error) {
	text, err := os.ReadFile(mountinfo)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	// Spaces and the like are octal in it.
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var found []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if m := unescape.Replace(fields[4]); m == folder || strings.HasPrefix(m, folder+string(filepath.Separator)) {
			found = append(found, m)
		}
	}
	return found, nil
}

// removeScratch removes a scratch folder, and nothing that was mounted into it.
func removeScratch(folder string) error {
	if err := detachMounts(folder); err != nil {
		return err
	}
	return os.RemoveAll(folder)
}
