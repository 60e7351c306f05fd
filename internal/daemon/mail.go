package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"

	"sbench/internal/api"
	"sbench/internal/mail"
)

// defaultMailProgram is where mail systems put the program that takes mail.
const defaultMailProgram = "/usr/sbin/sendmail"

// Mail says how mail about sweeps is sent: through a program or an SMTP relay.
type Mail struct {
	// Program is called as sendmail is, with the message on its standard input; ""
	// is /usr/sbin/sendmail where no relay is named.
	Program string `yaml:"program"`
	// SMTP is a relay's host:port; "" uses the program.
	SMTP string `yaml:"smtp"`
	// User logs in at the relay; "" is for relays that take mail of this host
	// without a login.
	User string `yaml:"user"`
	// PasswordFile has the password of User, and is the daemon's user's alone.
	PasswordFile string `yaml:"password_file"`
	// From is the sender's address; "" leaves it to the program.
	From string `yaml:"from"`
	// Domain is added to recipients that are users' names.
	Domain string `yaml:"domain"`
}

func (m Mail) check() []error {
	var errs []error
	if m.SMTP != "" {
		if _, _, err := net.SplitHostPort(m.SMTP); err != nil {
			errs = append(errs, fmt.Errorf("mail.smtp %q is not host:port", m.SMTP))
		}
		if m.Program != "" {
			errs = append(errs, errors.New("mail.program and mail.smtp exclude each other"))
		}
		if m.From == "" {
			errs = append(errs, errors.New("mail.smtp needs mail.from: the sender's address"))
		}
	}
	if (m.User == "") != (m.PasswordFile == "") {
		errs = append(errs, errors.New("mail.user and mail.password_file belong together"))
	}
	if m.User != "" && m.SMTP == "" {
		errs = append(errs, errors.New("mail.user logs in at a relay: name it in mail.smtp"))
	}
	if m.From != "" && api.CheckMailUser(m.From) != nil {
		errs = append(errs, fmt.Errorf("mail.from %q is no plain address", m.From))
	}
	if m.Domain != "" && api.CheckMailUser("x@"+m.Domain) != nil {
		errs = append(errs, fmt.Errorf("mail.domain %q is no domain", m.Domain))
	}
	return errs
}

func (m Mail) sender() func(context.Context, mail.Message) error {
	if m.SMTP != "" {
		return mail.SMTP{Address: m.SMTP, Login: m.login()}.Send
	}
	return mail.Program{Path: m.Program}.Send
}

// login is the account at the relay, nil without one.
func (m Mail) login() *mail.Login {
	if m.User == "" {
		return nil
	}
	return &mail.Login{User: m.User, PasswordFile: m.PasswordFile}
}

// ready says why no mail can be sent, as far as that is known before one is.
func (m Mail) ready() error {
	if m.SMTP != "" {
		if login := m.login(); login != nil {
			_, err := login.Password()
			return err
		}
		return nil
	}
	if _, err := exec.LookPath(m.Program); err != nil {
		return fmt.Errorf("the daemon's mail program: %w", err)
	}
	return nil
}
