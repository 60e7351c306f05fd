package runner

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/setting"
)

func TestMountsUnder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "mountinfo")
	text := `22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:50 / /tmp/sbench-run-7-1/tmp rw - tmpfs none rw
31 30 0:51 / /tmp/sbench-run-7-1/tmp/a\040b rw - fuse squashfuse_ll rw
32 22 0:52 / /tmp/sbench-run-7-12 rw - tmpfs none rw
short
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := mountsUnder(file, "/tmp/sbench-run-7-1")
	if want := []string{"/tmp/sbench-run-7-1/tmp", "/tmp/sbench-run-7-1/tmp/a b"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// TestRemoveScratch: what was mounted into a folder stays, and the folder goes.
func TestRemoveScratch(t *testing.T) {
	precious, folder := t.TempDir(), filepath.Join(t.TempDir(), "sbench-run-7-1")
	inside := filepath.Join(folder, "a", "model")
	file := filepath.Join(precious, "weights")
	if err := os.WriteFile(file, []byte("w"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(precious, inside, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("SKIPPED: this user cannot mount: %v", err)
	}
	if err := removeScratch(folder); err != nil {
		_ = unix.Unmount(inside, unix.MNT_DETACH)
		t.Fatal(err)
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("the folder is still there")
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("what was mounted was removed: %v", err)
	}
}

// fakeApptainer writes a container program that answers as a script says.
func fakeApptainer(dir, script string) string {
	path := filepath.Join(dir, "apptainer")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		panic(err)
	}
	return path
}

// TestRun_ContainerRefusals: a node or an image that the site does not allow is
// refused in one line, before the engine is started.
func TestRun_ContainerRefusals(t *testing.T) {
	tests := []struct {
		name  string
		edit  func(*batch.Spec, *setting.Setting)
		class lifecycle.ExitClass
		want  string
	}{
		{"unsigned image", func(b *batch.Spec, s *setting.Setting) {
			s.Image.Kind, b.Node.VerifyKey = setting.ImageSIF, "/etc/key.pem"
			b.Node.Apptainer = fakeApptainer(b.Node.TempDir, `case $1 in
			verify) [ "$2 $3" = "--key /etc/key.pem" ] || exit 9; echo 'FATAL:   image is not signed' >&2; exit 255 ;;
			exec) echo started >&2; exit 1 ;;
			esac`)
		}, lifecycle.ExitDriftArtefact, "ENV_DRIFT: an image signed with /etc/key.pem expected: FATAL:   image is not signed"},
		{"no user namespaces for this program", func(b *batch.Spec, s *setting.Setting) {
			s.Image.Kind = setting.ImageSIF
			b.Node.ContainerArgs = []string{"--userns"}
			b.Node.Apptainer = fakeApptainer(b.Node.TempDir, `case $1 in
			buildcfg) echo LIBEXECDIR=/nonexistent ;;
			exec) echo started >&2; exit 1 ;;
			esac`)
			b.Node.PassEnv = nil
		}, lifecycle.ExitDriftNode, "ENV_DRIFT: a node that can run the image expected: "},
		{"shared memory", func(b *batch.Spec, _ *setting.Setting) { b.Node.MinSHM = 1 << 60 }, lifecycle.ExitDriftNode, "ENV_DRIFT: shared memory of 1024PiB expected, "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, tt.edit)
			if strings.HasPrefix(tt.name, "no user") {
				// No program that mounts images is there either.
				t.Setenv("PATH", "/nonexistent")
			}
			code, out := b.run()
			m := b.sealed()
			b.nothingLeft()
			wantClass(t, code, m, out, tt.class)
			if len(m.Reasons) == 0 || !strings.Contains(m.Reasons[0], tt.want) || strings.Contains(out, "start engine") {
				t.Errorf("reasons %q, want %q first", m.Reasons, tt.want)
			}
		})
	}
}
