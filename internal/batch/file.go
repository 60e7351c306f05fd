package batch

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// The files of a batch's folder, <spool>/batches/<token>.
const (
	SpecFile   = "batch.json"   // the Spec
	ScriptFile = "batch.sbatch" // what sbatch got
	TaskFile   = "task.sh"      // what every task executes
	ClaimsDir  = "claims"       // one file per claimed task: who measures it
	LogsDir    = "logs"         // what the jobs print, and their records
	CancelDir  = "cancelled"    // a file per run that must not be started any more
)

// TokenPrefix begins every token, so that people recognise them.
const TokenPrefix = "sb-"

// TokenBytes is how many random bytes make a token: 100 bits.
const TokenBytes = 13

var tokenForm = regexp.MustCompile(`^sb-[a-z2-7]{20}$`)

// NewToken makes a token of random bytes, of which it uses 100 bits.
func NewToken(random [TokenBytes]byte) string {
	text := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random[:])
	return TokenPrefix + strings.ToLower(text[:20])
}

// IsToken reports whether the text has the form of a token.
func IsToken(text string) bool { return tokenForm.MatchString(text) }

// Dir is the batch's folder in a spool.
func Dir(spool, token string) string { return path.Join(spool, "batches", token) }

// AttemptDir is where a run of a job is sealed, below the spec's AttemptsDir.
func AttemptDir(attempts string, run, jobIDRaw int64, restart int) string {
	return path.Join(attempts, strconv.FormatInt(run, 10), fmt.Sprintf("%d-r%d", jobIDRaw, restart))
}

// Digest is the digest of a file's bytes: "sha256:<hex>".
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ErrSpec is wrapped by every error about a frozen spec that is not what was
// frozen, or not what this program understands.
var ErrSpec = errors.New("frozen spec")

// Encode validates the spec and returns the bytes of SpecFile and their digest.
// Equal specs give equal bytes.
func Encode(s *Spec) (data []byte, digest string, err error) {
	if err := s.Validate(); err != nil {
		return nil, "", err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(s); err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrSpec, err)
	}
	return b.Bytes(), Digest(b.Bytes()), nil
}

// Decode reads SpecFile and verifies that it is the one of the digest.
func Decode(data []byte, digest string) (*Spec, error) {
	if got := Digest(data); got != digest {
		return nil, fmt.Errorf("%w: digest %s, expected %s", ErrSpec, got, digest)
	}
	s := new(Spec)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSpec, err)
	}
	return s, s.Validate()
}

// Validate checks what every reader relies on.
func (s *Spec) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrSpec, fmt.Sprintf(format, args...))
	}
	switch {
	case s.Version != Version:
		return bad("version %d, this program reads %d", s.Version, Version)
	case !IsToken(s.Token):
		return bad("%q is no token", s.Token)
	case !path.IsAbs(s.AttemptsDir):
		return bad("attempts_dir %q is not absolute", s.AttemptsDir)
	case len(s.Tasks) == 0:
		return bad("no tasks")
	}
	for i, m := range s.Node.Mirrors {
		if _, err := ParseMirrorURL(m.URL); err != nil {
			return bad("the URL of mirror %d %v", i, err)
		}
		if !path.IsAbs(m.Key) || !path.IsAbs(m.KnownHosts) {
			return bad("key %q or known_hosts %q of mirror %d is not absolute", m.Key, m.KnownHosts, i)
		}
	}
	seen := map[int64]bool{}
	for i, t := range s.Tasks {
		if t.Index != i || len(t.Runs) == 0 {
			return bad("task %d has index %d and %d runs", i, t.Index, len(t.Runs))
		}
		settings := map[string]bool{}
		for _, r := range t.Runs {
			_, known := s.Settings[r.SettingHash]
			switch {
			case r.ID <= 0 || seen[r.ID]:
				return bad("run %d is there twice or has no id", r.ID)
			case !known:
				return bad("run %d has an unknown setting %s", r.ID, r.SettingHash)
			case settings[r.SettingHash]:
				return bad("task %d has two runs of setting %s", i, r.SettingHash)
			case r.TimeLimit <= 0:
				return bad("run %d has no time limit", r.ID)
			}
			if q := r.Quality; q != nil {
				if err := q.Validate(); err != nil {
					return bad("run %d: %v", r.ID, err)
				}
				if q.ItemsPath != "" && !path.IsAbs(q.ItemsPath) {
					return bad("run %d: the path %q of its items is not absolute", r.ID, q.ItemsPath)
				}
			}
			seen[r.ID], settings[r.SettingHash] = true, true
		}
	}
	return nil
}

// Task returns the task of an index and false where there is none.
func (s *Spec) Task(index int) (Task, bool) {
	if index < 0 || index >= len(s.Tasks) {
		return Task{}, false
	}
	return s.Tasks[index], true
}

// Run returns a run of the task and false where it has none of that id.
func (t Task) Run(id int64) (Run, bool) {
	for _, r := range t.Runs {
		if r.ID == id {
			return r, true
		}
	}
	return Run{}, false
}
