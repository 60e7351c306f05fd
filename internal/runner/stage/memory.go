package stage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// racy is how old a file's last change must be, when it is hashed, for its digest
// to be remembered: the kernel's time stamps are coarse, and a second change in
// the same tick would not show. Clocks of file servers may be off by as much.
const racy = 2 * time.Second

// memory has the digests of one artefact's files that were hashed before. It is
// worth as much as the folder that it lies in.
type memory struct {
	path string
	mu   sync.Mutex
	text struct {
		// Boot names the boot of the node: device numbers mean nothing after it.
		Boot  string                `json:"boot"`
		Files map[string]remembered `json:"files"` // by path
	}
	changed bool
	saved   time.Time
}

type remembered struct {
	Identity
	SHA256 string    `json:"sha256"`
	At     time.Time `json:"at"`
}

// remember reads what is known; a file that is not there, or damaged, knows
// nothing.
func remember(path, boot string) *memory {
	m := &memory{path: path}
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &m.text) != nil || m.text.Boot != boot || boot == "" {
		m.text.Files = nil
	}
	m.text.Boot = boot
	if m.text.Files == nil {
		m.text.Files = map[string]remembered{}
	}
	m.saved = time.Now()
	return m
}

func (m *memory) known(path string, id Identity) (string, time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.text.Files[path]
	if !ok || r.Identity != id || !validHex(r.SHA256) {
		return "", time.Time{}, false
	}
	return r.SHA256, r.At, true
}

func (m *memory) add(path string, id Identity, sum string, began time.Time) {
	newest := time.Unix(0, max(id.MTime, id.CTime))
	if began.Sub(newest) < racy {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.text.Files[path] = remembered{id, sum, began.UTC()}
	m.changed = true
}

// save writes the memory under its name, whole or not at all.
func (m *memory) save() (err error) {
	m.mu.Lock()
	b, err := json.Marshal(m.text)
	changed := m.changed
	m.changed = false
	m.mu.Unlock()
	if err != nil || !changed {
		return err
	}
	next, err := os.CreateTemp(filepath.Dir(m.path), filepath.Base(m.path)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = next.Write(b)
	if err = errors.Join(err, next.Close()); err == nil {
		err = os.Rename(next.Name(), m.path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(next.Name()))
	}
	return err
}

// bootID names this boot of the node; "" where the kernel does not say.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(b[:max(0, len(b)-1)])
}

// Once digests a file or folder, and reads no file that was hashed on this node
// since it was booted and still has the same device, inode, size, modification
// and change time. Artefact.Since says since when.
func (c *Cache) Once(ctx context.Context, path string) (Artefact, error) {
	unlock, err := c.lock(ctx, "memory-"+hexOf(path))
	if err != nil {
		return Artefact{}, fmt.Errorf("digest: %w", err)
	}
	defer unlock()
	m := remember(c.memoryPath(path), bootID())
	a, err := Hasher{Known: m.known, Done: m.add}.Digest(ctx, path)
	// Without it the next run hashes again. That a full disk takes nothing more is
	// found out by what needs it.
	_ = m.save()
	return a, err
}

func (c *Cache) memoryPath(path string) string {
	return filepath.Join(c.dir, "memory-"+hexOf(path)+".json")
}

func hexOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Resumable digests a file or folder of any size: what is done is saved in the
// file of the given path every few seconds, and when ctx ends, and is not done
// again by the next call. The file is removed at the end. progress, which may be
// nil, gets bytes done and in all.
func Resumable(ctx context.Context, path, saved string, progress func(done, total int64)) (Artefact, error) {
	if err := os.MkdirAll(filepath.Dir(saved), 0o700); err != nil {
		return Artefact{}, fmt.Errorf("digest: %w", err)
	}
	m := remember(saved, "by path")
	var mu sync.Mutex
	var done, total int64
	h := Hasher{
		Known: m.known,
		Done: func(path string, id Identity, sum string, began time.Time) {
			m.add(path, id, sum, began)
			mu.Lock()
			defer mu.Unlock()
			if time.Since(m.saved) > 3*time.Second {
				_ = m.save() // the next one tries again
				m.saved = time.Now()
			}
		},
		Total: func(_ int, bytes int64) { total = bytes },
	}
	if progress != nil {
		h.Progress = func(n int64) {
			mu.Lock()
			defer mu.Unlock()
			done += n
			progress(done, total)
		}
	}
	a, err := h.Digest(ctx, path)
	if err != nil {
		return a, errors.Join(err, m.save())
	}
	if err := os.Remove(saved); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return a, fmt.Errorf("digest: %w", err)
	}
	return a, nil
}

// identityOfPath follows no link.
func identityOfPath(path string) (Identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Identity{}, err
	}
	return identity(&st), nil
}
