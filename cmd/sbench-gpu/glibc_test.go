//go:build cgo

package main

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestOldGlibc: the program, built as it is shipped, asks for nothing that glibc
// 2.28 (RHEL 8) does not have, and for every function of glibc with a version.
func TestOldGlibc(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("there is no glibc here")
	}
	dir := t.TempDir()
	if out, err := exec.Command("../../scripts/build-gpu.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, name := range []string{"sbench-gpu", "sbench-gpu-arm64"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil && name != "sbench-gpu" {
			t.Logf("%s is not built here: its compiler is not installed", name)
			continue
		}
		oldSymbols(t, path)
	}
	out, err := exec.Command(filepath.Join(dir, "sbench-gpu"), "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "sbench-gpu ") {
		t.Errorf("version: %v\n%s", err, out)
	}
}

// oldSymbols checks the versions of the functions that a program imports.
func oldSymbols(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, s := range symbols {
		version, isGlibc := strings.CutPrefix(s.Version, "GLIBC_")
		if !isGlibc {
			// The functions of NVML are looked up when the library is there, and the
			// compiler's own hooks may be missing.
			if !strings.HasPrefix(s.Name, "nvml") && !strings.HasPrefix(s.Name, "_") {
				t.Errorf("%s: %s has no version", path, s.Name)
			}
			continue
		}
		found++
		var major, minor int
		if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil || major != 2 || minor > 28 {
			t.Errorf("%s: %s wants glibc %s, newer than 2.28", path, s.Name, version)
		}
	}
	if found < 10 {
		t.Errorf("%s: only %d functions of glibc were found: the test looks at the wrong thing", path, found)
	}
}
