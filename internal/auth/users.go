package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	lookupTimeout = 20 * time.Second
	nameLifetime  = 5 * time.Minute
	// staleLifetime is how long a name is used although the name service does not
	// answer: an outage of it must not lock out who was known a moment ago.
	staleLifetime = time.Hour
	maxCached     = 10_000
)

// ErrUnknownUser means that the name service answered and does not know the uid.
var ErrUnknownUser = errors.New("no such user")

// Users turns uids into names by getent, because a static binary sees only
// /etc/passwd and most clusters keep their users in LDAP or SSSD. Answers are
// kept for five minutes. It is safe for concurrent use.
type Users struct {
	now    func() time.Time
	lookup func(ctx context.Context, uid int) (string, error)

	mu    sync.Mutex
	names map[int]cachedName
}

type cachedName struct {
	name  string
	until time.Time
}

// NewUsers returns an empty cache in front of the system's name service.
func NewUsers() *Users {
	return &Users{now: time.Now, lookup: getent, names: map[int]cachedName{}}
}

// Name returns the name of a uid. A failed look-up is not remembered; the error
// is ErrUnknownUser where the name service knows better.
func (u *Users) Name(ctx context.Context, uid int) (string, error) {
	now := u.now()
	u.mu.Lock()
	c, ok := u.names[uid]
	u.mu.Unlock()
	if ok && now.Before(c.until) {
		return c.name, nil
	}
	name, err := u.lookup(ctx, uid)
	if err != nil {
		if ok && !errors.Is(err, ErrUnknownUser) && now.Before(c.until.Add(staleLifetime)) {
			return c.name, nil
		}
		return "", fmt.Errorf("look up uid %d: %w", uid, err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.names) >= maxCached {
		clear(u.names)
	}
	u.names[uid] = cachedName{name, now.Add(nameLifetime)}
	return name, nil
}

// ID returns the uid of a name, or ErrUnknownUser. It asks every time.
func (u *Users) ID(ctx context.Context, name string) (int, error) {
	if name == "" || strings.HasPrefix(name, "-") || strings.ContainsAny(name, ":\n\x00") || isNumber(name) {
		return 0, ErrUnknownUser // getent would read an option, or a uid
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "getent", "passwd", name).Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 2:
		return 0, ErrUnknownUser
	case err != nil:
		return 0, fmt.Errorf("getent passwd: %w", err)
	}
	fields := strings.Split(strings.TrimSpace(string(out)), ":")
	if len(fields) < 4 || fields[0] != name {
		return 0, fmt.Errorf("getent passwd printed %q", out)
	}
	uid, err := strconv.ParseUint(fields[2], 10, 31)
	if err != nil {
		return 0, fmt.Errorf("getent passwd printed uid %q", fields[2])
	}
	return int(uid), nil
}

func isNumber(s string) bool { return strings.Trim(s, "0123456789") == "" }

func getent(ctx context.Context, uid int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "getent", "passwd", strconv.Itoa(uid))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return passwdName(string(out), uid)
	case errors.Is(err, exec.ErrNotFound):
		// No libc tools (a container): /etc/passwd is all there is.
		found, err := user.LookupId(strconv.Itoa(uid))
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrUnknownUser, err)
		}
		return found.Username, nil
	case errors.As(err, &exit) && exit.ExitCode() == 2:
		return "", ErrUnknownUser
	default:
		return "", fmt.Errorf("getent passwd: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
}

// passwdName reads the name out of a passwd line and insists that the line is
// the one that was asked for.
func passwdName(line string, uid int) (string, error) {
	fields := strings.Split(strings.TrimSpace(line), ":")
	if len(fields) < 4 || fields[0] == "" {
		return "", fmt.Errorf("getent passwd printed %q", line)
	}
	if fields[2] != strconv.Itoa(uid) {
		return "", fmt.Errorf("getent passwd answered for uid %s", fields[2])
	}
	return fields[0], nil
}
