package mail

import (
	"bufio"
	"errors"
	"fmt"
	"net/smtp"
	"os"
	"slices"
	"strings"
)

// Login is an account at a relay.
type Login struct {
	User string
	// PasswordFile has the password in its first line, and is its owner's alone
	// (mode 0600 or 0400). It is read for each message, so that a new password
	// counts at once.
	PasswordFile string
}

// Password returns the account's password. An error does not contain it.
func (l Login) Password() (string, error) {
	f, err := os.Open(l.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("the mail relay's password: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", fmt.Errorf("the mail relay's password: %w", err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("the mail relay's password: %s is no file", l.PasswordFile)
	case info.Mode().Perm()&0o077 != 0:
		return "", fmt.Errorf("the mail relay's password: others may use %s (mode %04o): chmod 600 it", l.PasswordFile, info.Mode().Perm())
	}
	scan := bufio.NewScanner(f)
	scan.Scan()
	if err := scan.Err(); err != nil {
		return "", fmt.Errorf("the mail relay's password: read %s: %w", l.PasswordFile, err)
	}
	if scan.Text() == "" {
		return "", fmt.Errorf("the mail relay's password: the first line of %s is empty", l.PasswordFile)
	}
	return scan.Text(), nil
}

// authenticate logs in. The password goes over TLS only, and only to a relay whose
// certificate is its own.
func (l Login) authenticate(c *smtp.Client, host string) error {
	if _, ok := c.TLSConnectionState(); !ok {
		return errors.New("it offers no TLS: the password is not sent")
	}
	_, offered := c.Extension("AUTH")
	password, err := l.Password()
	if err != nil {
		return err
	}
	switch ways := strings.Fields(strings.ToUpper(offered)); {
	case slices.Contains(ways, "PLAIN"):
		err = c.Auth(smtp.PlainAuth("", l.User, password, host))
	case slices.Contains(ways, "LOGIN"):
		err = c.Auth(&loginAuth{user: l.User, password: password})
	default:
		return fmt.Errorf("it takes none of the logins PLAIN and LOGIN (it says %q)", offered)
	}
	if err != nil {
		return fmt.Errorf("log in as %s: %w", l.User, err)
	}
	return nil
}

// loginAuth is the mechanism LOGIN, which some relays have alone: the user, then the
// password, each when it is asked for.
type loginAuth struct {
	user, password string
	asked          int
}

func (*loginAuth) Start(*smtp.ServerInfo) (string, []byte, error) { return "LOGIN", nil, nil }

func (a *loginAuth) Next(_ []byte, more bool) ([]byte, error) {
	if !more {
		return nil, nil
	}
	a.asked++
	switch a.asked {
	case 1:
		return []byte(a.user), nil
	case 2:
		return []byte(a.password), nil
	}
	return nil, errors.New("the relay asks for more than user and password")
}
