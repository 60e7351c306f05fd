package mail

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/smtp"
	"net/textproto"
	"os"
	"time"
)

// SMTP sends through a relay. It goes over to TLS where a relay on another host
// offers it, and refuses one whose certificate is not its own. At port 465 all is
// TLS from the first byte (RFC 8314).
type SMTP struct {
	Address string        // host:port
	Timeout time.Duration // of one message; 0 is DefaultTimeout
	// Login is for relays that want one; nil for those that take mail of this host
	// as it comes. With it, TLS is a must wherever the relay is.
	Login *Login
	// Roots are the authorities that may vouch for the relay; nil is the system's.
	Roots *x509.CertPool
}

// submissionsPort is that of mail submission over TLS from the start.
const submissionsPort = "465"

// Send hands the message to the relay. Message.From must be given.
func (s SMTP) Send(ctx context.Context, m Message) error {
	text, err := m.Text()
	if err != nil {
		return err
	}
	if m.From == "" {
		return errors.New("a mail by SMTP needs a sender")
	}
	timeout := s.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := s.dial(ctx)
	if err != nil {
		return fmt.Errorf("mail relay %s: %w", s.Address, err)
	}
	defer c.Close()
	if err := converse(c, m, text); err != nil {
		return fmt.Errorf("mail relay %s: %w", s.Address, err)
	}
	return nil
}

// converse offers one message. Only when its end is not answered, nobody knows.
func converse(c *smtp.Client, m Message, text []byte) error {
	if err := c.Mail(m.From); err != nil {
		return err
	}
	if err := c.Rcpt(m.To); err != nil {
		return err
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err // its end was not sent
	}
	var refused *textproto.Error
	switch err := w.Close(); {
	case errors.As(err, &refused):
		return err
	case err != nil:
		return fmt.Errorf("%w (%w)", ErrUnknown, err)
	}
	_ = c.Quit() // it is sent
	return nil
}

func (s SMTP) dial(ctx context.Context) (*smtp.Client, error) {
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		return nil, err
	}
	trust := &tls.Config{ServerName: host, RootCAs: s.Roots, MinVersion: tls.VersionTLS12}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.Address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	far := !loopback(conn.RemoteAddr())
	if port == submissionsPort {
		conn = tls.Client(conn, trust)
	}
	c, err := smtp.NewClient(conn, host)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	self, err := os.Hostname()
	if err == nil {
		err = c.Hello(self)
	}
	if offered, _ := c.Extension("STARTTLS"); err == nil && offered && port != submissionsPort && (far || s.Login != nil) {
		err = c.StartTLS(trust)
	}
	if err == nil && s.Login != nil {
		err = s.Login.authenticate(c, host)
	}
	if err != nil {
		_ = c.Close() // a refused login has closed it
		return nil, err
	}
	return c, nil
}

func loopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
