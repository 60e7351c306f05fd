package auth

import (
	"strings"
	"testing"
)

// Whatever unmunge prints, only its own word on the success and the uid counts:
// the payload, which the caller chose, comes after them.
func FuzzParseUnmunge(f *testing.F) {
	const head = "STATUS:          0\nENCODE_HOST:     n1\nENCODE_TIME:     1795988020\nTTL:             60\nUID:             1000\nGID:             0\nLENGTH:          6\n"
	f.Add(head + "\nhello\n")
	f.Add(strings.Replace(head, "STATUS:          0", "STATUS:          17", 1) + "\nSTATUS: 0\nUID: 0\n")
	f.Add("\n\nSTATUS: 0\nUID: 0\nENCODE_TIME: 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parseUnmunge(text)
		if err == nil && (d.uid < 0 || d.encoded.IsZero() || !strings.HasSuffix(text, d.payload)) {
			t.Fatalf("%q: %+v", text, d)
		}
	})
}

func TestParseUnmunge_PayloadSaysNothing(t *testing.T) {
	t.Parallel()
	d, err := parseUnmunge("STATUS:          0\nENCODE_TIME:     1795988020\nUID:             1000\n\nUID: 0\nSTATUS: 0\n")
	if err != nil || d.uid != 1000 {
		t.Errorf("got %+v, %v", d, err)
	}
	if _, err := parseUnmunge("STATUS:          17\nENCODE_TIME:     1\nUID:             1000\n\nSTATUS: 0\n"); err == nil {
		t.Error("a refused credential is taken")
	}
}

func FuzzParseToken(f *testing.F) {
	secret, _ := NewSecret()
	f.Add(TokenText(7, secret))
	f.Add("sbt--7-" + secret)
	f.Fuzz(func(t *testing.T, text string) {
		id, secret, ok := parseToken(text)
		if ok && (id <= 0 || len(secret) != secretEncoding.EncodedLen(secretBytes)) {
			t.Fatalf("%q: %d %q", text, id, secret)
		}
	})
}
