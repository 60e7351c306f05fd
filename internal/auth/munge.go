package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

const (
	mungeScheme = "Munge "
	// maxCredential is longer than any credential with a payload of ours.
	maxCredential = 8 << 10
	// credentialTTL is how long a credential may be on its way, and how far the
	// clocks of the hosts may differ.
	credentialTTL = 60 * time.Second
	mungeTimeout  = 10 * time.Second
	// maxUnmunge bounds how many credentials are looked at at once.
	maxUnmunge = 16
)

// Binding is what a credential vouches for: it is good for this request alone.
// uri is the path with its query.
func Binding(method, uri string, body []byte) string {
	sum := sha256.Sum256(body)
	return "sbench-request-v1\n" + method + "\n" + uri + "\n" + hex.EncodeToString(sum[:]) + "\n"
}

// Munge runs the munge and unmunge programs: nothing is linked, and a site's own
// installation counts. It is safe for concurrent use.
type Munge struct {
	// Socket is munged's; "" is its default.
	Socket string
	// MungePath and UnmungePath are the programs; "" looks in PATH.
	MungePath, UnmungePath string
}

// Authorization returns the header for one request, which must be sent within a
// minute and cannot be sent twice.
func (m Munge) Authorization(ctx context.Context, method, uri string, body []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, mungeTimeout)
	defer cancel()
	args := []string{"--ttl=" + strconv.Itoa(int(credentialTTL/time.Second))}
	if m.Socket != "" {
		args = append(args, "--socket="+m.Socket)
	}
	cmd := exec.CommandContext(ctx, program(m.MungePath, "munge"), args...)
	cmd.Stdin = strings.NewReader(Binding(method, uri, body))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("make MUNGE credential: %w: %s", err, firstLine(stderr.String()))
	}
	return mungeScheme + strings.TrimSpace(string(out)), nil
}

func program(path, name string) string {
	if path != "" {
		return path
	}
	return name
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// decoded is what munged vouches for.
type decoded struct {
	uid     int
	encoded time.Time
	payload string
}

// decode asks munged about a credential. The error is ErrRefused where munged
// refuses it: forged, of another realm, expired, or seen before on this host.
func (m Munge) decode(ctx context.Context, credential string) (decoded, error) {
	ctx, cancel := context.WithTimeout(ctx, mungeTimeout)
	defer cancel()
	args := []string{"--numeric"}
	if m.Socket != "" {
		args = append(args, "--socket="+m.Socket)
	}
	cmd := exec.CommandContext(ctx, program(m.UnmungePath, "unmunge"), args...)
	cmd.Stdin = strings.NewReader(credential + "\n")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return parseUnmunge(string(out))
	case errors.As(err, &exit) && refusedByMunge(exit.ExitCode()):
		return decoded{}, fmt.Errorf("%w: %s", ErrRefused, firstLine(strings.TrimPrefix(stderr.String(), "unmunge: Error: ")))
	default:
		return decoded{}, fmt.Errorf("ask MUNGE: %w: %s", err, firstLine(stderr.String()))
	}
}

// refusedByMunge tells munged's word on the credential (EMUNGE_BAD_CRED 8 to
// EMUNGE_CRED_UNAUTHORIZED 18) from its not answering.
func refusedByMunge(status int) bool { return status >= 8 && status <= 18 }

// parseUnmunge reads "KEY: value" lines up to an empty one, and the payload after it.
func parseUnmunge(text string) (decoded, error) {
	head, payload, ok := strings.Cut(text, "\n\n")
	if !ok {
		return decoded{}, errors.New("unmunge printed no payload")
	}
	d := decoded{uid: -1, payload: payload}
	success := false
	for line := range strings.SplitSeq(head, "\n") {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "STATUS":
			success = value == "0"
		case "UID":
			uid, err := strconv.ParseUint(value, 10, 31)
			if err != nil {
				return decoded{}, fmt.Errorf("unmunge printed uid %q", value)
			}
			d.uid = int(uid)
		case "ENCODE_TIME":
			at, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return decoded{}, fmt.Errorf("unmunge printed time %q", value)
			}
			d.encoded = time.Unix(at, 0)
		}
	}
	if !success || d.uid < 0 || d.encoded.IsZero() {
		return decoded{}, errors.New("unmunge did not say who made the credential")
	}
	return d, nil
}

// Replays remembers credentials over all daemons and restarts: munged does for
// its own host only. Once must report whether this digest was never seen before.
type Replays interface {
	Once(ctx context.Context, digest string, until time.Time) (bool, error)
}

// Credentials identifies callers by MUNGE credentials. It is safe for concurrent use.
type Credentials struct {
	munge   Munge
	users   *Users
	roles   Roles
	replays Replays
	now     func() time.Time
	slots   chan struct{}
}

// NewCredentials returns an identifier of callers over TCP.
func NewCredentials(m Munge, users *Users, roles Roles, replays Replays) *Credentials {
	return &Credentials{munge: m, users: users, roles: roles, replays: replays, now: time.Now, slots: make(chan struct{}, maxUnmunge)}
}

// Identify returns who sent the request. It reads the body, which the caller has
// bounded, and puts it back.
func (c *Credentials) Identify(r *http.Request) (Identity, error) {
	credential, ok := strings.CutPrefix(r.Header.Get("Authorization"), mungeScheme)
	if !ok || !strings.HasPrefix(credential, "MUNGE:") || len(credential) > maxCredential || strings.ContainsAny(credential, " \t\r\n") {
		return Identity{}, fmt.Errorf("%w: not a MUNGE credential", ErrRefused)
	}
	ctx := r.Context()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return Identity{}, fmt.Errorf("read request: %w", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return Identity{}, ctx.Err()
	}
	d, err := c.munge.decode(ctx, credential)
	if err != nil {
		return Identity{}, err
	}
	if d.payload != Binding(r.Method, r.URL.RequestURI(), body) {
		return Identity{}, fmt.Errorf("%w: it was made for another request", ErrRefused)
	}
	if age := c.now().Sub(d.encoded); age > credentialTTL || age < -credentialTTL {
		return Identity{}, fmt.Errorf("%w: it was made %v ago, or the clocks differ", ErrRefused, age.Truncate(time.Second))
	}
	sum := sha256.Sum256([]byte(credential))
	first, err := c.replays.Once(ctx, hex.EncodeToString(sum[:]), d.encoded.Add(2*credentialTTL))
	if err != nil {
		return Identity{}, err
	}
	if !first {
		return Identity{}, fmt.Errorf("%w: it was used before", ErrRefused)
	}
	name, err := c.users.Name(ctx, d.uid)
	if err != nil {
		return Identity{}, err
	}
	return c.roles.identity(d.uid, name, ViaMunge), nil
}
