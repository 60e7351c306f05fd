package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNode_Variant(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	for _, tt := range []struct {
		name          string
		node          Node
		args          string
		variant, want string // want: in the error
	}{
		{"a program that says nothing", Node{NoUserNamespaces: "off", NoFUSE: "none"}, "", "", ""},
		{"setuid", Node{SetUID: &yes, NoUserNamespaces: "off", NoFUSE: "none"}, "", "setuid", ""},
		{"root", Node{SetUID: &no, Root: true}, "--no-privs", "root", ""},
		{"user namespaces", Node{SetUID: &no, Squashfuse: true}, "", "user namespaces", ""},
		{"setuid, but told not to", Node{SetUID: &yes, Squashfuse: true}, "--userns", "user namespaces", ""},
		{"no user namespaces", Node{SetUID: &no, NoUserNamespaces: "user.max_user_namespaces is 0", Squashfuse: true}, "", "", "no user namespaces: user.max_user_namespaces is 0"},
		{"no FUSE", Node{SetUID: &no, NoFUSE: "open /dev/fuse: permission denied", Squashfuse: true}, "", "", "open /dev/fuse: permission denied; --unsquash"},
		{"no FUSE, unpacked", Node{SetUID: &no, NoFUSE: "none"}, "--unsquash", "user namespaces, unpacked", ""},
		{"no squashfuse", Node{SetUID: &no}, "", "", "no squashfuse_ll"},
	} {
		variant, err := tt.node.Variant(strings.Fields(tt.args))
		if variant != tt.variant || (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %q, %v", tt.name, variant, err)
		}
	}
}

func TestReadNode(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := "PACKAGE_NAME=apptainer\nLIBEXECDIR=/usr/libexec\n"
	if n := ReadNode(root, "", 1000); n.SetUID != nil || n.NoFUSE == "" || n.Squashfuse || n.NoUserNamespaces != "" {
		t.Errorf("nothing there: %+v", n)
	}
	starter := write("usr/libexec/apptainer/bin/starter-suid", "")
	write("usr/libexec/apptainer/bin/squashfuse_ll", "")
	write("dev/fuse", "")
	write("proc/sys/user/max_user_namespaces", "0\n")
	n := ReadNode(root, config, 1000)
	if n.SetUID == nil || *n.SetUID || n.NoFUSE != "" || !n.Squashfuse || n.NoUserNamespaces != "user.max_user_namespaces is 0" {
		t.Errorf("without the bit: %+v", n)
	}
	if os.Getuid() == 0 {
		if err := unix.Chmod(starter, unix.S_ISUID|0o755); err != nil {
			t.Fatal(err)
		}
		if n := ReadNode(root, config, 1000); n.SetUID == nil || !*n.SetUID {
			t.Errorf("setuid: %+v", n)
		}
	}
	write("proc/sys/user/max_user_namespaces", "1000\n")
	write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
	if n := ReadNode(root, config, 1000); n.NoUserNamespaces != "kernel.apparmor_restrict_unprivileged_userns is 1" {
		t.Errorf("AppArmor: %+v", n)
	}
}
