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
		return mail.SMTP{Address: m.SMTP}.Send
	}
	return mail.Program{Path: m.Program}.Send
}

// ready says why no mail can be sent, as far as that is known before one is.
func (m Mail) ready() error {
	if m.SMTP != "" {
		return nil
	}
	if _, err := exec.LookPath(m.Program); err != nil {
		return fmt.Errorf("the daemon's mail program: %w", err)
	}
	return nil
}
