package mail_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	netmail "net/mail"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/mail"
)

func message() mail.Message {
	return mail.Message{
		From: "sbench@example.org", To: "ada@example.org", Subject: "sbench: sweep 17 (nightly) is complete", ID: "sbench.17.end.1.1000@login1",
		Date: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Body: "Sweep 17.\n.\nA line with ünïcode and = and a dot alone above.\n",
	}
}

func TestMessage_Text(t *testing.T) {
	t.Parallel()
	text, err := message().Text()
	if err != nil {
		t.Fatal(err)
	}
	want := "From: sbench <sbench@example.org>\r\nTo: ada@example.org\r\nSubject: sbench: sweep 17 (nightly) is complete\r\n" +
		"Date: Wed, 04 Mar 2026 05:06:07 +0000\r\nMessage-ID: <sbench.17.end.1.1000@login1>\r\nAuto-Submitted: auto-generated\r\nMIME-Version: 1.0\r\n" +
		"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n" +
		"Sweep 17.\r\n.\r\nA line with =C3=BCn=C3=AFcode and =3D and a dot alone above.\r\n"
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

func TestMessage_RefusesAddresses(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "-oQ/tmp", "ada@x\r\nBcc: eve@x", "ada, eve", "ada@", "<ada>"} {
		m := message()
		m.To = bad
		if _, err := m.Text(); err == nil {
			t.Errorf("recipient %q was taken", bad)
		}
		m = message()
		m.From = bad
		if _, err := m.Text(); err == nil && bad != "" {
			t.Errorf("sender %q was taken", bad)
		}
		m = message()
		m.ID = bad
		if _, err := m.Text(); err == nil {
			t.Errorf("id %q was taken", bad)
		}
	}
}

// FuzzMessage: whatever is in subject and body, the headers are ours and the body
// comes out as it went in.
func FuzzMessage(f *testing.F) {
	f.Add("nightly", "body\n")
	f.Add("x\r\nBcc: eve@example.org\r\n\r\nhello", "a\r\n.\r\nb")
	f.Add("=?utf-8?q?evil?=", "\n\n")
	f.Add("\xff\x00ü\u2028"+strings.Repeat("long ", 100), strings.Repeat("x", 2000))
	f.Fuzz(func(t *testing.T, title, body string) {
		m := message()
		m.Subject, m.Body = title, body
		text, err := m.Text()
		if err != nil {
			t.Fatal(err)
		}
		got, err := netmail.ReadMessage(strings.NewReader(string(text)))
		if err != nil {
			t.Fatalf("%v in %q", err, text)
		}
		var keys []string
		for k, v := range got.Header {
			keys = append(keys, fmt.Sprint(k, len(v)))
		}
		slices.Sort(keys)
		want := []string{"Auto-Submitted1", "Content-Transfer-Encoding1", "Content-Type1", "Date1", "From1", "Message-Id1", "Mime-Version1", "Subject1", "To1"}
		if diff := cmp.Diff(want, keys); diff != "" {
			t.Fatalf("headers of %q (-want +got):\n%s", text, diff)
		}
		if s, err := new(mime.WordDecoder).DecodeHeader(got.Header.Get("Subject")); err != nil || strings.ContainsAny(s, "\r\n") {
			t.Fatalf("subject %q: %v", s, err)
		}
		back, err := io.ReadAll(quotedprintable.NewReader(got.Body))
		if err != nil {
			t.Fatal(err)
		}
		lines := func(s string) string { return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\r\n", "\n") }
		if !strings.Contains(body, "\r") && lines(string(back)) != lines(body) {
			t.Fatalf("body %q became %q", body, back)
		}
		for line := range strings.Lines(string(text)) {
			if len(line) > 1000 {
				t.Fatalf("a line of %d bytes", len(line))
			}
		}
	})
}

// program writes a fake sendmail that keeps its arguments and its input.
func program(t *testing.T, script string) (path, kept string) {
	t.Helper()
	dir := t.TempDir()
	path, kept = filepath.Join(dir, "sendmail"), filepath.Join(dir, "kept")
	text := "#!/bin/sh\nprintf '[%s]' \"$@\" >" + kept + "\ncat >>" + kept + "\n" + script + "\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, kept
}

func TestProgram(t *testing.T) {
	t.Parallel()
	path, kept := program(t, "")
	if err := (mail.Program{Path: path}).Send(t.Context(), message()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text); !strings.HasPrefix(got, "[-i][-f][sbench@example.org][ada@example.org]From: sbench <") || strings.Contains(got, "\r") || !strings.HasSuffix(got, "above.\n") {
		t.Errorf("got %q", got)
	}
}

func TestProgram_Failures(t *testing.T) {
	t.Parallel()
	refuses, _ := program(t, "echo 'no such  mailbox' >&2; exit 67")
	hangs, _ := program(t, "exec sleep 60")
	dies, _ := program(t, "kill -9 $$")
	for name, tc := range map[string]struct {
		path    string
		timeout time.Duration
		unknown bool
		want    string
	}{
		"is not there": {filepath.Join(t.TempDir(), "none"), 0, false, "no such file"},
		"refuses":      {refuses, 0, false, "exit status 67: no such mailbox"},
		"hangs":        {hangs, 500 * time.Millisecond, true, "killed"},
		"dies":         {dies, 0, true, "killed"},
	} {
		err := mail.Program{Path: tc.path, Timeout: tc.timeout}.Send(t.Context(), message())
		if err == nil || errors.Is(err, mail.ErrUnknown) != tc.unknown || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("a program that %s: %v", name, err)
		}
	}
}

// relay is a mail server for one message; after is what it does at the end of it.
func relay(t *testing.T, after string) (address string, got <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	texts := make(chan string, 1)
	go func() {
		defer close(texts)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		var all strings.Builder
		defer func() { texts <- all.String() }()
		r := bufio.NewReader(conn)
		say := func(s string) { _, _ = io.WriteString(conn, s+"\r\n") }
		say("220 relay")
		for data := false; ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			all.WriteString(line)
			switch {
			case data && line == ".\r\n":
				data = false
				if after == "" {
					return
				}
				say(after)
			case data:
			case strings.HasPrefix(line, "EHLO"):
				say("250 relay")
			case strings.HasPrefix(line, "RCPT TO:<nobody@"):
				say("550 no such mailbox")
			case strings.HasPrefix(line, "DATA"):
				data = true
				say("354 go on")
			case strings.HasPrefix(line, "QUIT"):
				say("221 bye")
				return
			default:
				say("250 ok")
			}
		}
	}()
	return l.Addr().String(), texts
}

func TestSMTP(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		after, to string
		unknown   bool
		want      string
	}{
		"takes it":     {after: "250 queued", to: "ada@example.org"},
		"refuses it":   {after: "554 spam", to: "ada@example.org", want: "spam"},
		"knows nobody": {after: "250 queued", to: "nobody@example.org", want: "no such mailbox"},
		"goes away":    {to: "ada@example.org", unknown: true, want: "EOF"},
	} {
		address, got := relay(t, tc.after)
		m := message()
		m.To = tc.to
		err := mail.SMTP{Address: address, Timeout: 10 * time.Second}.Send(t.Context(), m)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("a relay that %s: %v", name, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || errors.Is(err, mail.ErrUnknown) != tc.unknown):
			t.Errorf("a relay that %s: %v", name, err)
		}
		if text := <-got; tc.want == "" && (!strings.Contains(text, "MAIL FROM:<sbench@example.org>") || !strings.Contains(text, "\r\n..\r\nA line")) {
			t.Errorf("a relay that %s got %q", name, text)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (mail.SMTP{Address: "127.0.0.1:1"}).Send(ctx, message()); err == nil || errors.Is(err, mail.ErrUnknown) {
		t.Errorf("got %v", err)
	}
}
