// Package mail sends short plain-text messages through a mail program or an SMTP
// relay. It promises that nothing in a message becomes a header or an argument
// of its own, and that an error says whether the message may have left. It
// refuses addresses that are more than a name, an @ and a host.
package mail

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// Message is one mail to one person.
type Message struct {
	// From is an address; "" leaves it to the mail program.
	From string
	To   string
	// Subject is one line; what is no printable character becomes a blank.
	Subject string
	// ID is the Message-ID without angle brackets: id@host.
	ID   string
	Date time.Time
	// Body is UTF-8 text with lines of any length.
	Body string
}

// ErrUnknown is wrapped by errors after which the message may have been sent, or
// may still be.
var ErrUnknown = errors.New("not known whether the mail was sent")

const mostSubject = 200 // characters

var (
	addressForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+=-]*(@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)?$`)
	idForm      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*$`)
)

// Text renders the message with lines that end in CR LF.
func (m Message) Text() ([]byte, error) {
	for _, a := range []string{m.From, m.To} {
		if a == "" && a == m.From {
			continue
		}
		if len(a) > 254 || !addressForm.MatchString(a) {
			return nil, fmt.Errorf("%q is no address", a)
		}
	}
	if len(m.ID) > 250 || !idForm.MatchString(m.ID) {
		return nil, fmt.Errorf("%q is no message id", m.ID)
	}
	var b bytes.Buffer
	if m.From != "" {
		fmt.Fprintf(&b, "From: sbench <%s>\r\n", m.From)
	}
	fmt.Fprintf(&b, "To: %s\r\nSubject: %s\r\nDate: %s\r\nMessage-ID: <%s>\r\n", m.To, subject(m.Subject), m.Date.Format(time.RFC1123Z), m.ID)
	b.WriteString("Auto-Submitted: auto-generated\r\nMIME-Version: 1.0\r\n" +
		"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n")
	w := quotedprintable.NewWriter(&b)
	body := strings.ToValidUTF8(m.Body, "\uFFFD")
	if _, err := w.Write([]byte(strings.ReplaceAll(body, "\n", "\r\n"))); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// subject is one line of printable characters, encoded where it is not ASCII.
func subject(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if r := []rune(text); len(r) > mostSubject {
		text = string(r[:mostSubject-1]) + "…"
	}
	return mime.QEncoding.Encode("utf-8", text)
}
