package submit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sbench/internal/batch"
)

// Freeze writes a batch's folder: batch.json, batch.sbatch, task.sh, claims/ and
// logs/. The folder appears under its name complete and durable, or not at all.
// A folder that is there already is left alone, and an error.
func Freeze(dir string, spec, script, task []byte) (err error) {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("freeze batch: %w", err)
	}
	temp, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+".*")
	if err != nil {
		return fmt.Errorf("freeze batch: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("freeze batch %s: %w", dir, err), os.RemoveAll(temp))
		}
	}()
	for _, f := range []struct {
		name string
		data []byte
		mode fs.FileMode
	}{{batch.SpecFile, spec, 0o444}, {batch.ScriptFile, script, 0o555}, {batch.TaskFile, task, 0o555}} {
		if err := writeSynced(filepath.Join(temp, f.name), f.data, f.mode); err != nil {
			return err
		}
	}
	for _, sub := range []string{batch.ClaimsDir, batch.LogsDir} {
		if err := os.Mkdir(filepath.Join(temp, sub), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return err
	}
	if err := syncDir(temp); err != nil {
		return err
	}
	if err := os.Rename(temp, dir); err != nil {
		return err
	}
	return syncDir(parent)
}

func writeSynced(name string, data []byte, mode fs.FileMode) (err error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(data); err != nil {
		return err
	}
	// The umask may have taken what others need to read the file.
	if err := f.Chmod(mode); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Program is a binary that jobs execute.
type Program struct {
	Name string // its name in the spool: sbench-runner
	Path string // where it is now
}

// Install copies programs into <spool>/bin/<sha256>, where the digest is of their
// names and contents, and returns that folder. A folder that is there already is
// used: an upgrade never changes what a running batch executes. One whose content
// is not what its name says is put aside, and made again.
func Install(spool string, programs []Program) (dir string, err error) {
	// In the order of the names, in which the tasks look at them.
	programs = slices.SortedFunc(slices.Values(programs), func(a, b Program) int { return strings.Compare(a.Name, b.Name) })
	name, err := digestPrograms(programs)
	if err != nil {
		return "", fmt.Errorf("install programs: %w", err)
	}
	dir = filepath.Join(spool, "bin", name)
	if complete(dir, programs) {
		installed := slices.Clone(programs)
		for i := range installed {
			installed[i].Path = filepath.Join(dir, installed[i].Name)
		}
		if got, err := digestPrograms(installed); err == nil && got == name {
			return dir, nil
		}
	}
	parent := filepath.Dir(dir)
	if _, err := os.Lstat(dir); err == nil {
		// Tidying removes what begins with a dot. Who executes it has it open.
		aside := filepath.Join(parent, fmt.Sprintf(".damaged.%s.%d", name, time.Now().UnixNano()))
		if err := os.Rename(dir, aside); err != nil {
			return "", fmt.Errorf("install programs: %s is not what was installed: %w", dir, err)
		}
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("install programs: %w", err)
	}
	temp, err := os.MkdirTemp(parent, ".new.*")
	if err != nil {
		return "", fmt.Errorf("install programs: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	for _, p := range programs {
		if err := copySynced(filepath.Join(temp, p.Name), p.Path); err != nil {
			return "", fmt.Errorf("install %s: %w", p.Name, err)
		}
	}
	if err := errors.Join(os.Chmod(temp, 0o755), syncDir(temp)); err != nil {
		return "", fmt.Errorf("install programs: %w", err)
	}
	if err := os.Rename(temp, dir); err != nil {
		if complete(dir, programs) { // another daemon was faster
			return dir, os.RemoveAll(temp)
		}
		return "", fmt.Errorf("install programs: %w", err)
	}
	return dir, syncDir(parent)
}

func digestPrograms(programs []Program) (string, error) {
	sum := sha256.New()
	for _, p := range programs {
		digest, err := digestFile(p.Path)
		if err != nil {
			return "", fmt.Errorf("%s: %w", p.Name, err)
		}
		fmt.Fprintf(sum, "%s %s\n", digest, p.Name)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// stamp changes when a program in the folder does; "" where one is missing.
func stamp(dir string, programs []Program) string {
	if !complete(dir, programs) {
		return ""
	}
	var b strings.Builder
	for _, p := range programs {
		info, err := os.Lstat(filepath.Join(dir, p.Name))
		if err != nil {
			return ""
		}
		fmt.Fprintf(&b, "%s %d %d;", p.Name, info.Size(), info.ModTime().UnixNano())
	}
	return b.String()
}

// complete reports whether the folder holds exactly the programs, and nothing
// that leads elsewhere. It looks at no content.
func complete(dir string, programs []Program) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	return len(entries) == len(programs) && !slices.ContainsFunc(programs, func(p Program) bool {
		info, err := os.Lstat(filepath.Join(dir, p.Name))
		return err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0
	})
}

func digestFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func copySynced(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o555)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return errors.Join(out.Chmod(0o555), out.Sync())
}
