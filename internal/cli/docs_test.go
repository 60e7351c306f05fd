package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sbench/internal/site"
	"sbench/internal/sweep"
)

// documented is a command line of the manual.
type documented struct {
	where string
	line  string
	// whole: a reader would type it as it stands. In the middle of a sentence
	// arguments are left out.
	whole bool
}

var (
	inlineForm = regexp.MustCompile("`([^`]+)`")
	// shellEnd is where a command of a line of shell ends.
	shellEnd = []string{"|", ">", ">>", "<", "&&", "||", ";", "&", "2>"}
)

func pages(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("no manual: %v", err)
	}
	return append(files, "../../README.md")
}

// fence is a block of a page between lines of backquotes.
type fence struct {
	where, language, text string
}

// readPage splits a page into its fenced blocks and its other lines, by number.
func readPage(t *testing.T, path string) (fences []fence, lines map[int]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines = map[int]string{}
	var open *fence
	for i, line := range strings.Split(string(text), "\n") {
		language, mark := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case mark && open == nil:
			open = &fence{where: fmt.Sprintf("%s:%d", filepath.Base(path), i+1), language: language}
		case mark:
			fences, open = append(fences, *open), nil
		case open != nil:
			open.text += line + "\n"
		default:
			lines[i+1] = line
		}
	}
	if open != nil {
		t.Errorf("%s: the block is not closed", open.where)
	}
	return fences, lines
}

// commandLines are the command lines of sbench in the manual and in the help texts.
func commandLines(t *testing.T) []documented {
	t.Helper()
	var all []documented
	for _, path := range pages(t) {
		fences, lines := readPage(t, path)
		for _, f := range fences {
			for line := range strings.Lines(strings.ReplaceAll(f.text, "\\\n", " ")) {
				line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
				if strings.HasPrefix(line, "sbench ") {
					all = append(all, documented{f.where, line, true})
				}
			}
		}
		for n, line := range lines {
			for _, m := range inlineForm.FindAllStringSubmatch(line, -1) {
				if strings.HasPrefix(m[1], "sbench ") {
					all = append(all, documented{fmt.Sprintf("%s:%d", filepath.Base(path), n), m[1], false})
				}
			}
		}
	}
	root := newRootCommand(testApp())
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for line := range strings.Lines(strings.ReplaceAll(c.Example, "\\\n", " ")) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "sbench ") {
				all = append(all, documented{"help of " + c.CommandPath(), line, true})
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	return all
}

// words splits a line as a shell does, up to the end of its first command.
func words(line string) ([]string, error) {
	var out []string
	var word strings.Builder
	quote, within := rune(0), false
	end := func() {
		if within {
			out = append(out, word.String())
		}
		word.Reset()
		within = false
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, within = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			end()
		case quote == 0 && r == '#' && !within:
			return out, nil
		default:
			word.WriteRune(r)
			within = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote is not closed")
	}
	end()
	if i := slices.IndexFunc(out, func(w string) bool { return slices.Contains(shellEnd, w) }); i >= 0 {
		out = out[:i]
	}
	return out, nil
}

// parses reports what is wrong with a documented command line: a command or a
// flag that does not exist, a value that is none, arguments that do not fit.
func parses(d documented) error {
	args, err := words(d.line)
	if err != nil {
		return err
	}
	args = args[1:]
	if !d.whole {
		args = withoutSigns(args)
	}
	root := newRootCommand(testApp())
	root.InitDefaultHelpCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if len(rest) > 0 && cmd.HasSubCommands() && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("%s has no command %q", cmd.CommandPath(), rest[0])
	}
	if cmd.DisableFlagParsing {
		return nil
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if d.whole && cmd.Runnable() && cmd.Args != nil {
		return cmd.Args(cmd, cmd.Flags().Args())
	}
	return nil
}

// withoutSigns takes the signs of a synopsis away: [--flag VALUE], A|B, ARG...
func withoutSigns(args []string) []string {
	var out []string
	for _, w := range args {
		w = strings.TrimRight(strings.TrimLeft(w, "["), "]")
		w = strings.TrimSuffix(strings.TrimSuffix(w, "..."), "…")
		for alternative := range strings.SplitSeq(w, "|") {
			if alternative != "" {
				out = append(out, alternative)
			}
		}
	}
	// A flag at the end stands for itself, whatever its value.
	if n := len(out); n > 0 && strings.HasPrefix(out[n-1], "-") && !strings.Contains(out[n-1], "=") {
		out = append(out, "1")
	}
	return out
}

// TestDocs_CommandLines: every command line of the manual, the README and the help
// texts is one that sbench understands.
func TestDocs_CommandLines(t *testing.T) {
	t.Parallel()
	all := commandLines(t)
	whole := 0
	for _, d := range all {
		if d.whole {
			whole++
		}
		if err := parses(d); err != nil {
			t.Errorf("%s: `%s`: %v", d.where, d.line, err)
		}
	}
	if whole < 20 || len(all) < 100 {
		t.Errorf("only %d command lines, %d of them whole: the manual is not read", len(all), whole)
	}
}

func TestDocs_Parses(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"sbench queue -u $USER | wc -l": "", `sbench submit --set "a b=c" s.yaml # now`: "", "sbench site pause lab && true": "",
		"sbench qeue": `no command "qeue"`, "sbench site pasue lab": `no command "pasue"`, "sbench queue --sweeps 1": "unknown flag",
		"sbench queue --sweep x": "invalid argument", "sbench queue 17": "unexpected argument", "sbench results": "missing argument",
		`sbench submit --comment "x s.`: "not closed",
	} {
		err := parses(documented{"test", line, true})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	if err := parses(documented{"test", "sbench site gc SITE [--dry-run]", false}); err != nil {
		t.Error(err)
	}
	if err := parses(documented{"test", "sbench site gc SITE [--dry-ran]", false}); err == nil {
		t.Error("a flag that does not exist in a synopsis")
	}
}

// TestDocs_Files: sweep and site files that a page shows whole are valid.
func TestDocs_Files(t *testing.T) {
	t.Parallel()
	sweeps := 0
	for _, path := range pages(t) {
		fences, _ := readPage(t, path)
		for _, f := range fences {
			body := bytes.TrimSpace([]byte(f.text))
			switch {
			case f.language != "yaml":
			case bytes.HasPrefix(body, []byte("sweep: v1")), bytes.Contains(body, []byte("\nsweep: v1\n")):
				sweeps++
				file, list := sweep.Parse([]byte(f.text), f.where)
				if list.HasErrors() {
					t.Errorf("%s:\n%s", f.where, list.Text())
					continue
				}
				if _, list := sweep.Expand(file, sweep.Options{}); list.HasErrors() {
					t.Errorf("%s:\n%s", f.where, list.Text())
				}
			case bytes.HasPrefix(body, []byte("site: v1")):
				if _, list := site.Load([]byte(f.text), f.where); list.HasErrors() {
					t.Errorf("%s:\n%s", f.where, list.Text())
				}
			}
		}
	}
	if sweeps == 0 {
		t.Error("no page shows a sweep file")
	}
}
