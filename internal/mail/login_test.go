package mail_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sbench/internal/mail"
)

// certificate is of a relay at 127.0.0.1, and who trusts it.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "relay"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// submission is a relay that wants a login: by the mechanisms that it says, over TLS
// if it has a certificate. It takes sbench with the password "s3cret word" and tells
// what it was sent, "TLS" where it went over.
func submission(t *testing.T, mechanisms string, cert *tls.Certificate) (address string, got <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	texts := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			texts <- ""
			return
		}
		defer conn.Close()
		r := &relayed{conn: conn, in: bufio.NewReader(conn), mechanisms: mechanisms, cert: cert}
		r.say("220 relay")
		for r.answer() {
		}
		texts <- r.all.String()
	}()
	return l.Addr().String(), texts
}

// relayed is a conversation with a relay.
type relayed struct {
	conn       net.Conn
	in         *bufio.Reader
	all        strings.Builder
	mechanisms string
	cert       *tls.Certificate
	known      bool
}

func (r *relayed) say(s string) { _, _ = io.WriteString(r.conn, s+"\r\n") }

func (r *relayed) line() (string, bool) {
	line, err := r.in.ReadString('\n')
	r.all.WriteString(line)
	return strings.TrimRight(line, "\r\n"), err == nil
}

// judge answers a login.
func (r *relayed) judge(said string) {
	if r.known = said == "\x00sbench\x00s3cret word"; r.known {
		r.say("235 welcome")
		return
	}
	r.say("535 wrong user or password")
}

// ask asks for a word of the mechanism LOGIN.
func (r *relayed) ask(prompt string) string {
	r.say("334 " + base64.StdEncoding.EncodeToString([]byte(prompt)))
	line, _ := r.line()
	word, _ := base64.StdEncoding.DecodeString(line)
	return string(word)
}

func (r *relayed) answer() bool {
	line, ok := r.line()
	if !ok {
		return false
	}
	switch verb, rest, _ := strings.Cut(line, " "); verb {
	case "EHLO":
		if _, secure := r.conn.(*tls.Conn); !secure && r.cert != nil {
			r.say("250-relay\r\n250 STARTTLS")
			return true
		}
		r.say("250-relay\r\n250 AUTH " + r.mechanisms)
	case "STARTTLS":
		r.say("220 go ahead")
		secure := tls.Server(r.conn, &tls.Config{Certificates: []tls.Certificate{*r.cert}, MinVersion: tls.VersionTLS12})
		r.conn, r.in = secure, bufio.NewReader(secure)
		r.all.WriteString("TLS\r\n")
	case "AUTH":
		if encoded, plain := strings.CutPrefix(rest, "PLAIN "); plain {
			said, _ := base64.StdEncoding.DecodeString(encoded)
			r.judge(string(said))
			return true
		}
		r.judge("\x00" + r.ask("Username:") + "\x00" + r.ask("Password:"))
	case "DATA":
		r.say("354 go on")
		for {
			if line, ok := r.line(); !ok || line == "." {
				break
			}
		}
		r.say("250 queued")
	case "QUIT":
		r.say("221 bye")
		return false
	default:
		if !r.known {
			r.say("530 log in first")
			return true
		}
		r.say("250 ok")
	}
	return true
}

func TestSMTP_Login(t *testing.T) {
	t.Parallel()
	cert, roots := certificate(t)
	secret := func(text string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), "password")
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	right := secret("s3cret word\n", 0o600)
	for name, tc := range map[string]struct {
		mechanisms string
		cert       *tls.Certificate
		roots      *x509.CertPool
		file       string
		want       string
	}{
		"takes PLAIN":                  {"CRAM-MD5 PLAIN LOGIN", &cert, roots, right, ""},
		"takes LOGIN alone":            {"LOGIN", &cert, roots, right, ""},
		"takes neither":                {"XOAUTH2", &cert, roots, right, "none of the logins"},
		"has no TLS":                   {"PLAIN", nil, roots, right, "no TLS"},
		"is not who it says":           {"PLAIN", &cert, nil, right, "certificate"},
		"knows another password":       {"PLAIN", &cert, roots, secret("s3cret", 0o600), "wrong user"},
		"is never shown an open file":  {"PLAIN", &cert, roots, secret("s3cret word", 0o640), "chmod 600"},
		"is never shown an empty file": {"PLAIN", &cert, roots, secret("\ns3cret word", 0o600), "empty"},
		"is never shown what is gone":  {"PLAIN", &cert, roots, filepath.Join(t.TempDir(), "none"), "no such file"},
	} {
		address, got := submission(t, tc.mechanisms, tc.cert)
		relay := mail.SMTP{Address: address, Timeout: 20 * time.Second, Roots: tc.roots, Login: &mail.Login{User: "sbench", PasswordFile: tc.file}}
		err := relay.Send(t.Context(), message())
		text := <-got
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("a relay that %s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a relay that %s: the error tells the password: %v", name, err)
		}
		if sent := strings.Contains(text, "A line with"); sent != (err == nil) {
			t.Errorf("a relay that %s was sent the mail %v: %q", name, sent, text)
		}
		if before, _, secure := strings.Cut(text, "TLS\r\n"); strings.Contains(before, "AUTH") && !secure {
			t.Errorf("a relay that %s was sent the password in the open: %q", name, text)
		}
	}
}
