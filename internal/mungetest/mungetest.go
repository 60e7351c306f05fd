// Package mungetest gives tests a real MUNGE daemon with a key of their own. It
// promises that it ends with the test, and to fail, never to skip, where there is
// no munged.
package mungetest

import (
	"crypto/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sbench/internal/auth"
)

// Key makes a key for Start.
func Key(t testing.TB) []byte {
	t.Helper()
	key := make([]byte, 128)
	_, _ = rand.Read(key) // never fails
	return key
}

// Start runs a munged with a key. Two with the same key are two hosts of one
// realm: neither knows what the other has seen.
func Start(t testing.TB, key []byte) auth.Munge {
	t.Helper()
	// A Unix socket's path is short, and munged refuses folders that others may
	// write into.
	dir, err := os.MkdirTemp("/tmp", "sb-munge-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(path("key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	munged, err := exec.LookPath("munged")
	if err != nil {
		munged = "/usr/sbin/munged"
	}
	cmd := exec.Command(munged, "--foreground", "--force", "--key-file="+path("key"), "--socket="+path("s"),
		"--pid-file="+path("pid"), "--seed-file="+path("seed"), "--num-threads=2")
	log, err := os.Create(path("log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("mungetest: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(time.Minute); ; {
		c, err := net.Dial("unix", path("s"))
		if err == nil {
			c.Close()
			return auth.Munge{Socket: path("s")}
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(path("log"))
			t.Fatalf("mungetest: munged does not answer: %v\n%s", err, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
