package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Node is what decides how, and whether, a node can run a SIF.
type Node struct {
	Root bool // the runner is root
	// SetUID says that the container program's starter is installed with its rights;
	// nil where the program does not say where its parts are.
	SetUID *bool
	// UserNamespaces is why an ordinary user cannot make one; "" where one can.
	NoUserNamespaces string
	// NoFUSE is why the FUSE device cannot be used; "" where it can.
	NoFUSE string
	// Squashfuse says that a program which mounts squashfs by FUSE was found.
	Squashfuse bool
}

// Variant says by which rights the program will run an image: setuid, root or user
// namespaces; "" where that cannot be told. The error says in one line what the
// node lacks.
func (n Node) Variant(args []string) (string, error) {
	switch {
	case n.SetUID == nil:
		return "", nil // it is asked by running it
	case *n.SetUID && !slices.Contains(args, "--userns") && !slices.Contains(args, "-u"):
		return "setuid", nil
	case n.Root && !slices.Contains(args, "--userns") && !slices.Contains(args, "-u"):
		return "root", nil
	case n.NoUserNamespaces != "":
		return "", fmt.Errorf("the container program is not installed setuid, and there are no user namespaces: %s", n.NoUserNamespaces)
	case slices.Contains(args, "--unsquash"):
		return "user namespaces, unpacked", nil
	case n.NoFUSE != "":
		return "", fmt.Errorf("images cannot be mounted without FUSE: %s; --unsquash in engine.container_args unpacks them instead", n.NoFUSE)
	case !n.Squashfuse:
		return "", errors.New("images cannot be mounted: there is no squashfuse_ll and no squashfuse; --unsquash in engine.container_args unpacks them instead")
	}
	return "user namespaces", nil
}

// ReadNode looks at the node. config is what the program's buildcfg prints: lines
// NAME=value; where it says nothing of LIBEXECDIR, SetUID is nil.
func ReadNode(root, config string, uid int) Node {
	n := Node{Root: uid == 0, NoFUSE: noFUSE(filepath.Join(root, "dev/fuse"))}
	values := map[string]string{}
	for line := range strings.Lines(config) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[name] = value
		}
	}
	dirs := strings.Split(os.Getenv("PATH"), ":")
	if libexec := values["LIBEXECDIR"]; libexec != "" {
		suid := false
		for _, name := range []string{"apptainer", "singularity"} {
			var st unix.Stat_t
			if unix.Stat(filepath.Join(root, libexec, name, "bin/starter-suid"), &st) == nil {
				suid = suid || st.Uid == 0 && st.Mode&unix.S_ISUID != 0
			}
			dirs = append(dirs, filepath.Join(libexec, name, "bin"))
		}
		n.SetUID = &suid
	}
	for _, dir := range dirs {
		for _, name := range []string{"squashfuse_ll", "squashfuse"} {
			n.Squashfuse = n.Squashfuse || unix.Access(filepath.Join(root, dir, name), unix.X_OK) == nil
		}
	}
	n.NoUserNamespaces = noUserNamespaces(root)
	return n
}

func noFUSE(device string) string {
	f, err := os.OpenFile(device, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err.Error()
	}
	_ = f.Close()
	return ""
}

// noUserNamespaces asks the kernel's switches: the general one, Debian's and
// Ubuntu's.
func noUserNamespaces(root string) string {
	for _, s := range []struct {
		file   string
		closed func(int) bool
	}{
		{"proc/sys/user/max_user_namespaces", func(v int) bool { return v == 0 }},
		{"proc/sys/kernel/unprivileged_userns_clone", func(v int) bool { return v == 0 }},
		{"proc/sys/kernel/apparmor_restrict_unprivileged_userns", func(v int) bool { return v == 1 }},
	} {
		text, err := os.ReadFile(filepath.Join(root, s.file))
		if err != nil {
			continue // this kernel has no such switch
		}
		if v, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && s.closed(v) {
			return strings.ReplaceAll(strings.TrimPrefix(s.file, "proc/sys/"), "/", ".") + " is " + strconv.Itoa(v)
		}
	}
	return ""
}
