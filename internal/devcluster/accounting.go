package devcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sync/errgroup"
)

// systemTables are where distributions put the tables of a new database.
var systemTables = []string{
	"/usr/share/mysql/mysql_system_tables.sql",
	"/usr/share/mariadb/mysql_system_tables.sql",
	"/usr/share/mariadb/mariadb_system_tables.sql",
}

func (c *Cluster) mysqlSocket() string { return c.path("db", "mysqld.sock") }

// mariadbd is the common part of the command line: a small database that need
// not survive a power failure.
func (c *Cluster) mariadbd(data string) []string {
	argv := []string{
		// A server that starts removes the temporary tables of every other in its tmpdir.
		"mariadbd", "--no-defaults", "--datadir=" + data, "--tmpdir=" + c.path("db"), "--innodb-log-file-size=16M", "--innodb-buffer-pool-size=128M",
		"--innodb-flush-method=nosync", "--sync-frm=0", "--performance-schema=OFF",
	}
	if os.Geteuid() == 0 {
		argv = append(argv, "--user=root")
	}
	return argv
}

// initAccounting makes the database of slurmdbd unless it is there. It is made
// under another name first, so that an interrupted attempt is never used.
func (c *Cluster) initAccounting(ctx context.Context) error {
	if _, err := os.Stat(c.path("db", "data")); err == nil {
		return nil
	}
	tables, err := readFirst(systemTables)
	if err != nil {
		return fmt.Errorf("initialize MariaDB: %w", err)
	}
	fresh := c.path("db", "data.new")
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.MkdirAll(fresh, 0o700); err != nil {
		return err
	}
	argv := append(c.mariadbd(fresh), "--bootstrap", "--enforce-storage-engine=", "--max_allowed_packet=8M")
	program, err := lookPath(argv[0])
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, argv[1:]...)
	cmd.Env = c.daemonEnv()
	// In bootstrap mode every statement stands on a line of its own.
	cmd.Stdin = strings.NewReader("create database mysql;\nuse mysql;\nset @auth_root_socket=NULL;\n" + tables)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initialize MariaDB: %w: %s", err, lastLines(out))
	}
	return os.Rename(fresh, c.path("db", "data"))
}

func readFirst(paths []string) (string, error) {
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err == nil {
			return string(b), nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("none of %s is there: install mariadb-server-core", strings.Join(paths, ", "))
}

// addAccounts fills slurmdbd once: account ml, the caller and Options.Users, and
// the QOS normal (Slurm's own), high (preempts low), low and debug.
func (c *Cluster) addAccounts(ctx context.Context) error {
	done := c.path("db", "accounts.done")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	// Nearly all of sacctmgr's time is waiting for delayed acknowledgements, so
	// what does not depend on one another goes side by side.
	stages := [][][]string{{
		{"add cluster " + c.opts.Name, "add account ml description=ml organization=lab"},
		{"add qos high priority=1000"},
		{"add qos low priority=1"},
		{"add qos debug MaxSubmitJobsPerUser=2 MaxWall=00:30:00"},
	}, {
		{"modify qos high set preempt=low"},
	}}
	for _, u := range append([]string{currentUser()}, c.opts.Users...) {
		level := "None"
		if u == currentUser() {
			level = "Administrator"
		}
		stages[1] = append(stages[1], []string{"add user " + u + " account=ml defaultaccount=ml qos=normal,high,low,debug defaultqos=normal adminlevel=" + level})
	}
	for _, stage := range stages {
		g, gctx := errgroup.WithContext(ctx)
		for _, commands := range stage {
			g.Go(func() error {
				for _, line := range commands {
					if err := c.sacctmgr(gctx, line); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return os.WriteFile(done, nil, 0o644)
}

// limitDebug caps the GPUs of QOS debug, which slurmdbd only knows once
// slurmctld has registered them.
func (c *Cluster) limitDebug(ctx context.Context) error {
	done := c.path("db", "limits.done")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	if err := c.sacctmgr(ctx, "modify qos debug set MaxTRESPerUser=gres/gpu=4"); err != nil {
		return err
	}
	return os.WriteFile(done, nil, 0o644)
}

// sacctmgr runs one command; what an interrupted attempt has added is fine.
func (c *Cluster) sacctmgr(ctx context.Context, line string) error {
	out, err := c.command(ctx, "sacctmgr", append([]string{"-iQ"}, strings.Fields(line)...)...).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "Nothing new added") && !strings.Contains(string(out), "already exists") {
		return fmt.Errorf("sacctmgr %s: %w: %s", line, err, lastLines(out))
	}
	return nil
}

func lastLines(out []byte) string {
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n  ")
}
