package diag_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/diag"
)

func TestDiagnostic_Text(t *testing.T) {
	t.Parallel()
	source := "parallel: {tensro: 4}"
	c := diag.NewCollector("sweep.yaml", []byte("a: b\n"+source+"\n"))
	c.Errorf(diag.Pos{Line: 2, Column: 12}, `did you mean "tensor"?`, "unknown key %q", "tensro")
	c.Warnf(diag.Pos{}, "", "the file is old")
	want := `sweep.yaml: warning: the file is old
sweep.yaml:2:12: unknown key "tensro"
  2 | parallel: {tensro: 4}
    |            ^
  hint: did you mean "tensor"?
`
	if diff := cmp.Diff(want, c.List().Text()); diff != "" {
		t.Error(diff)
	}
	if got := c.List().Err().Error(); got != `sweep.yaml:2:12: unknown key "tensro"` {
		t.Error(got)
	}
	text, err := json.Marshal(c.List()[1])
	if want := `{"file":"sweep.yaml","line":2,"column":12,"severity":"error","message":"unknown key \"tensro\"","hint":"did you mean \"tensor\"?","source":"parallel: {tensro: 4}"}`; err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
}

// TestDiagnostic_Hostile: nothing in a file can drive the terminal, and the
// caret stays below its character.
func TestDiagnostic_Hostile(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		line := strings.ReplaceAll(rapid.String().Draw(t, "line"), "\n", " ")
		column := rapid.IntRange(-5, 500).Draw(t, "column")
		d := diag.Diagnostic{File: "\x1b[2Jf", Line: 1, Column: column, Message: rapid.String().Draw(t, "message"), Hint: "\r\x00hint", Source: line}
		text := d.Text()
		for _, r := range text {
			if unicode.IsControl(r) && r != '\n' {
				t.Fatalf("control character %U in %q", r, text)
			}
		}
	})
	long := strings.Repeat("x", 5000) + "!" + strings.Repeat("y", 5000)
	lines := strings.Split(diag.Diagnostic{File: "f", Line: 1, Column: 5001, Message: "m", Source: long}.Text(), "\n")
	if len(lines[1]) > 200 || []rune(lines[1])[strings.IndexByte(lines[2], '^')] != '!' {
		t.Errorf("the caret is not below the character:\n%s\n%s", lines[1], lines[2])
	}
	tabs := strings.Split(diag.Diagnostic{File: "f", Line: 1, Column: 3, Message: "m", Source: "\tä!"}.Text(), "\n")
	if []rune(tabs[1])[strings.IndexByte(tabs[2], '^')] != '!' {
		t.Errorf("the caret is not below the character:\n%s\n%s", tabs[1], tabs[2])
	}
}

func TestList_Sort(t *testing.T) {
	t.Parallel()
	c := diag.NewCollector("f", nil)
	c.Errorf(diag.Pos{Line: 10, Column: 1}, "", "d")
	c.Warnf(diag.Pos{Line: 2, Column: 9}, "", "c")
	c.Errorf(diag.Pos{Line: 2, Column: 9}, "", "b")
	c.Errorf(diag.Pos{Line: 2, Column: 1}, "", "a")
	c.Errorf(diag.Pos{Line: 2, Column: 1}, "", "a")
	var got []string
	for _, d := range c.List() {
		got = append(got, d.Message)
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d"}, got); diff != "" {
		t.Error(diff)
	}
	if len(c.List().Errors()) != 3 || len(c.List().Warnings()) != 1 || !c.HasErrors() {
		t.Error("the list is not split by severity")
	}
	if (diag.List{}).Err() != nil || c.List().Warnings().Err() != nil {
		t.Error("no error expected")
	}
}

func TestCollector_Cap(t *testing.T) {
	t.Parallel()
	c := diag.NewCollector("f", nil)
	for i := range diag.MaxDiagnostics + 7 {
		c.Errorf(diag.Pos{Line: i + 1, Column: 1}, "", "fault %d", i)
	}
	list := c.List()
	if len(list) != diag.MaxDiagnostics+1 || !c.Full() || c.Count() != diag.MaxDiagnostics+7 {
		t.Fatalf("%d diagnostics", len(list))
	}
	if got := list[len(list)-1].Message; got != "more than 1000 faults: the rest is not shown" {
		t.Error(got)
	}
}

func TestCollector_Conceal(t *testing.T) {
	t.Parallel()
	c := diag.NewCollector("f", []byte("a: hf_abc\nb: 1\n"))
	c.Errorf(diag.Pos{Line: 1, Column: 1}, "", "first")
	c.Concealf(diag.Pos{Line: 1, Column: 4}, "", "looks like a secret")
	c.Errorf(diag.Pos{Line: 2, Column: 1}, "", "other line")
	want := "f:1:1: first\nf:1:4: looks like a secret\nf:2:1: other line\n  2 | b: 1\n    | ^\n"
	if diff := cmp.Diff(want, c.List().Text()); diff != "" {
		t.Error(diff)
	}
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	words := []string{"tensor", "pipeline", "data", "expert", "max"}
	for in, want := range map[string]string{
		"tensro": "tensor", "Tensor": "tensor", "tensors": "tensor", "pipline": "pipeline", "dat": "data", "mx": "max",
		"zzz": "", "": "", "tensor": "", "completely different": "", strings.Repeat("x", 1000): "",
	} {
		hint := ""
		if want != "" {
			hint = fmt.Sprintf("did you mean %q?", want)
		}
		if got := diag.Suggest(in, words); got != hint {
			t.Errorf("%q: %q, want %q", in, got, hint)
		}
	}
}

// TestCollector_LongMessage: a message that quotes a hostile value stays short.
func TestCollector_LongMessage(t *testing.T) {
	t.Parallel()
	c := diag.NewCollector("a.yaml", nil)
	c.Errorf(diag.Pos{}, "", "unknown: %s", strings.Repeat("é", 1<<20))
	if text := c.List().Text(); len(text) > 4096 || !utf8.ValidString(text) || !strings.Contains(text, "é…") {
		t.Errorf("%d bytes: %.100s", len(text), text)
	}
}
