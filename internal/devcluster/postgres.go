package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// postgresDir is the folder of PostgreSQL's programs, newest first.
func postgresDir() (string, error) {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well formed
	more, _ := filepath.Glob("/usr/pgsql-*/bin")
	dirs = append(dirs, more...)
	sort.Slice(dirs, func(i, j int) bool { return postgresVersion(dirs[i]) > postgresVersion(dirs[j]) })
	if path, err := lookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "postgres")); err == nil {
			if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
				return dir, nil
			}
		}
	}
	return "", errors.New("PostgreSQL's initdb and postgres are neither on PATH nor in /usr/lib/postgresql")
}

func postgresVersion(dir string) int {
	v, _ := strconv.Atoi(strings.TrimLeft(filepath.Base(filepath.Dir(dir)), "pgsql-"))
	return v
}

// asPostgres wraps a command line so that it does not run as root, which
// PostgreSQL refuses: as the account postgres (or nobody) where that can reach
// the directory, else as root under another name in a user namespace.
func (c *Cluster) asPostgres(argv []string) []string {
	if os.Geteuid() != 0 {
		return argv
	}
	u := c.postgresAccount()
	if u == nil {
		return append([]string{"unshare", "--user", "--map-user=65534", "--map-group=65534"}, argv...)
	}
	return append([]string{"setpriv", "--reuid=" + u.Uid, "--regid=" + u.Gid, "--clear-groups"}, argv...)
}

// postgresAccount is nil where no account can reach the directory.
func (c *Cluster) postgresAccount() *user.User {
	for dir := c.opts.Dir; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&0o001 == 0 {
			return nil
		}
		if dir == "/" {
			break
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			return u
		}
	}
	return nil
}

func (c *Cluster) postgresServer() []string {
	dir, err := postgresDir()
	if err != nil {
		dir = "" // requirePrograms has said so
	}
	return c.asPostgres([]string{
		filepath.Join(dir, "postgres"), "-D", c.path("pg", "data"),
		"-c", "listen_addresses=", "-c", "unix_socket_directories=" + c.path("run", "pg"), "-c", "port=5432",
		// Commits survive the death of any process, not a power failure.
		"-c", "fsync=off", "-c", "full_page_writes=off",
		// Nothing in /dev/shm that a kill -9 would leave there.
		"-c", "dynamic_shared_memory_type=mmap",
		"-c", "shared_buffers=64MB", "-c", "max_connections=100", "-c", "log_line_prefix=%m [%p] ",
	})
}

// startPostgres makes the database unless it is there, and starts the server.
func (c *Cluster) startPostgres(ctx context.Context, progress func(string)) error {
	bin, err := postgresDir()
	if err != nil {
		return err
	}
	if os.Geteuid() == 0 && c.postgresAccount() == nil {
		probe := c.asPostgres([]string{"true"})
		if err := exec.CommandContext(ctx, probe[0], probe[1:]...).Run(); err != nil {
			return fmt.Errorf("start PostgreSQL: it refuses root, no account postgres or nobody can enter %s, and user namespaces are not allowed: choose another directory", c.opts.Dir)
		}
	}
	for _, d := range []string{"pg", filepath.Join("run", "pg")} {
		if err := c.mkdir(d, 0o700); err != nil {
			return err
		}
		if err := c.giveToPostgres(c.path(d)); err != nil {
			return err
		}
	}
	if err := c.initPostgres(ctx, bin); err != nil {
		return err
	}
	if err := c.startComponent(ctx, "postgres"); err != nil {
		return err
	}
	err = await(ctx, "PostgreSQL", func(ctx context.Context) error {
		out, err := c.psql(ctx, bin, "CREATE DATABASE sbench")
		if err == nil || strings.Contains(out, "already exists") {
			return nil
		}
		return fmt.Errorf("create the database: %w: %s", err, out)
	})
	if err == nil {
		progress("PostgreSQL answers")
	}
	return err
}

// postgresAnswers asks for a row: after a kill -9 the socket is there well before
// the recovery is over.
func (c *Cluster) postgresAnswers(ctx context.Context) error {
	bin, err := postgresDir()
	if err != nil {
		return fatalError{err}
	}
	if out, err := c.psql(ctx, bin, "SELECT 1"); err != nil {
		return fmt.Errorf("ask PostgreSQL: %w: %s", err, out)
	}
	return nil
}

// psql runs a statement in the database that is always there, and returns the
// last lines of what it printed.
func (c *Cluster) psql(ctx context.Context, bin, statement string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "psql"), "-X", "-q", "-h", c.path("run", "pg"), "-U", "sbench", "-d", "postgres", "-c", statement)
	cmd.Env = c.daemonEnv()
	out, err := cmd.CombinedOutput()
	return lastLines(out), err
}

// initPostgres works under another name first, so that an interrupted attempt
// is never used.
func (c *Cluster) initPostgres(ctx context.Context, bin string) error {
	data, fresh := c.path("pg", "data"), c.path("pg", "data.new")
	if _, err := os.Stat(data); err == nil {
		return nil
	}
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	argv := c.asPostgres([]string{
		filepath.Join(bin, "initdb"), "-D", fresh, "-A", "trust", "-U", "sbench", "--no-sync", "--locale=C", "-E", "UTF8", "--no-instructions",
	})
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = c.path("pg"), c.daemonEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initialize PostgreSQL: %w: %s", err, lastLines(out))
	}
	return os.Rename(fresh, data)
}

func (c *Cluster) giveToPostgres(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid := 0, 0
	if u := c.postgresAccount(); u != nil {
		var err1, err2 error
		uid, err1 = strconv.Atoi(u.Uid)
		gid, err2 = strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
	}
	return os.Chown(path, uid, gid)
}

// clearPostgres removes what a killed server leaves: its System V segment, whose
// key and id stand in postmaster.pid, and that file and the socket's lock, which
// the next server would not pass while another process has the pid in them. Backends end by themselves when their
// server is gone; until then the segment is theirs.
func (c *Cluster) clearPostgres() error {
	// An interrupted initdb leaves the same under the name it works with.
	for _, data := range []string{"data", "data.new"} {
		if err := clearDataDir(c.path("pg", data)); err != nil {
			return fmt.Errorf("clean up after PostgreSQL: %w", err)
		}
	}
	for _, stale := range []string{c.path("run", "pg", ".s.PGSQL.5432.lock"), c.path("run", "pg", ".s.PGSQL.5432")} {
		if err := os.Remove(stale); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func clearDataDir(dir string) error {
	pidFile := filepath.Join(dir, "postmaster.pid")
	b, err := os.ReadFile(pidFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	lines := strings.Split(string(b), "\n")
	var key, id int
	if len(lines) >= 7 {
		if n, err := fmt.Sscan(lines[6], &key, &id); n == 2 && err == nil {
			if err := releaseSegment(key, id); err != nil {
				return fmt.Errorf("%s: %w", dir, err)
			}
		}
	}
	return os.Remove(pidFile)
}

func releaseSegment(key, id int) error {
	var ds unix.SysvShmDesc
	ours := func() bool { // after a reboot the id may be another's
		_, err := unix.SysvShmCtl(id, unix.IPC_STAT, &ds)
		return err == nil && int(ds.Perm.Key) == key
	}
	if !waitFor(10*time.Second, func() bool { return !ours() || ds.Nattch == 0 }) {
		return fmt.Errorf("processes are still attached to shared memory %d", id)
	}
	if !ours() {
		return nil
	}
	if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil && !errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("remove shared memory %d: %w", id, err)
	}
	return nil
}
