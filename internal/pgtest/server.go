package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// startServer returns the address of a database in which databases can be made,
// on a server with its files in parent and these settings, or the one that DSNEnv
// names.
func startServer(parent string, settings []string) (string, error) {
	if dsn := os.Getenv(DSNEnv); dsn != "" {
		return dsn, nil
	}
	bin, err := findPostgres()
	if err != nil {
		return "", err
	}
	credential, err := unprivileged()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(parent, "sbench-pgtest-")
	if err != nil {
		return "", err
	}
	if credential != nil {
		if err := os.Chown(dir, int(credential.Uid), int(credential.Gid)); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	if err := initialize(bin, dir, credential); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	if err := launch(bin, dir, credential, settings); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	dsn := "host=" + quote(dir) + " user=sbench dbname=postgres sslmode=disable"
	return dsn, await(dsn, dir)
}

// memoryDir is where files lie in memory, if there is room, or else TMPDIR.
func memoryDir() string {
	const dir, room = "/dev/shm", 4 << 30
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC || fs.Bavail*uint64(fs.Bsize) < room {
		return os.TempDir()
	}
	if unix.Access(dir, unix.W_OK) != nil {
		return os.TempDir()
	}
	return dir
}

// findPostgres returns the newest folder that holds initdb and postgres.
func findPostgres() (string, error) {
	found, best := "", -1
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	more, _ := filepath.Glob("/usr/pgsql-*/bin")
	for _, dir := range append(dirs, more...) {
		version := strings.TrimPrefix(filepath.Base(filepath.Dir(dir)), "pgsql-")
		n, err := strconv.Atoi(version)
		if err == nil && n > best && executable(filepath.Join(dir, "initdb")) && executable(filepath.Join(dir, "postgres")) {
			found, best = dir, n
		}
	}
	if found != "" {
		return found, nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	return "", fmt.Errorf("no PostgreSQL found: install it (apt-get install postgresql), or set %s", DSNEnv)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// unprivileged names whom the server runs as where the tests run as root, which
// PostgreSQL refuses; nil otherwise.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody")
}

func initialize(bin, dir string, credential *syscall.Credential) error {
	cmd := exec.Command(filepath.Join(bin, "initdb"), "--pgdata="+filepath.Join(dir, "data"),
		"--username=sbench", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "--no-instructions")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

// guard runs the server until its standard input ends, which happens whichever
// way the test process goes, and removes the folder.
const guard = `
trap '' INT TERM
bin=$1 dir=$2
shift 2
"$bin/postgres" -D "$dir/data" -k "$dir" "$@" >>"$dir/log" 2>&1 </dev/null &
server=$!
cat >/dev/null
kill -QUIT "$server"
wait "$server"
cd / && rm -rf "$dir"
`

func launch(bin, dir string, credential *syscall.Credential, settings []string) error {
	// The write end stays open in this process alone, for as long as it lives: a
	// bare descriptor, which no garbage collector closes.
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	read := os.NewFile(uintptr(pipe[0]), "lifeline")
	defer read.Close()
	args := []string{"-c", guard, "sbench-pgtest", bin, dir}
	for _, setting := range append([]string{
		"listen_addresses=", "max_connections=200", "log_min_messages=warning", "autovacuum_naptime=20s", "jit=off",
	}, settings...) {
		args = append(args, "-c", setting)
	}
	cmd := exec.Command("/bin/sh", args...)
	cmd.Dir = dir
	cmd.Stdin = read
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	// A session of its own: Ctrl-C reaches the tests, not the server.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential, Setsid: true}
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start postgres: %w", err), unix.Close(pipe[1]))
	}
	return cmd.Process.Release()
}

func await(dsn, dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, dsn)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			return fmt.Errorf("postgres does not answer: %w: %s", err, bytes.TrimSpace(log))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
