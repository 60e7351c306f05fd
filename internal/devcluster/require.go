package devcluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// InstallHint is the command that gets what Up needs on Debian.
const InstallHint = "scripts/install-deps.sh"

// ErrMissing: programs that Up needs are not installed.
var ErrMissing = errors.New("not installed")

// requirePrograms names everything that is missing at once.
func requirePrograms(o Options) error {
	need := []string{"munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "sinfo", "scontrol", "scancel", "setsid", "setpriv", "unshare"}
	if !o.NoAccounting {
		need = append(need, "slurmdbd", "mariadbd", "sacct", "sacctmgr")
	}
	var missing []string
	for _, name := range need {
		if _, err := lookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if !o.NoDatabase {
		if _, err := postgresDir(); err != nil {
			missing = append(missing, "postgres", "initdb")
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s: %w: run %s", strings.Join(missing, ", "), ErrMissing, InstallHint)
	}
	if _, ok := nonLoopback(); !ok {
		return errors.New("this machine has only loopback addresses, with which Slurm's daemons do not start: ip address add 10.255.255.1/32 dev lo")
	}
	if !o.NoDaemon {
		if path := filepath.Join(o.Binaries, "sbenchd"); !isExecutable(path) {
			return fmt.Errorf("%s is not there: build it (make build) or leave the daemon out (--no-daemon)", path)
		}
	}
	return nil
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
