package api_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/api"
)

func TestParseMailType(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"": nil, "none": nil, "NONE": nil, "end": {"END"}, "FAIL,begin": {"BEGIN", "FAIL"}, "END,END": {"END"},
		"all": {"BEGIN", "END", "FAIL", "REQUEUE", "INVALID_DEPEND"}, "ALL,END": {"BEGIN", "END", "FAIL", "REQUEUE", "INVALID_DEPEND"},
	} {
		got, err := api.ParseMailType(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v (-want +got):\n%s", text, err, diff)
		}
	}
	for _, text := range []string{"TIME_LIMIT", "END,", ",", "end fail"} {
		if got, err := api.ParseMailType(text); err == nil {
			t.Errorf("%q was taken: %v", text, got)
		}
	}
}

func TestCheckMailUser(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"ada", "ada@example.org", "a.b+sbench=x@mail-1.example.org", "svc_bench"} {
		if err := api.CheckMailUser(text); err != nil {
			t.Error(err)
		}
	}
	for _, text := range []string{
		"", "-oQ/tmp", "ada@", "@example.org", "ada@example.org\nBcc: eve@example.org", "ada\r\n", "ada eve", "ada,eve@example.org", "|cat", "/tmp/x",
		"ada@-x", "ada@x-", "a@b@c", `"ada"@x`, "ada@exämple.org", strings.Repeat("a", 255),
	} {
		if err := api.CheckMailUser(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
