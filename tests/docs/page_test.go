package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

// page is a page of the manual with what it shows.
type page struct {
	name   string // relative to the repository
	blocks []block
}

// block is a fenced block and the comments <!-- test: … --> right above it.
type block struct {
	line     int // of its opening fence
	language string
	text     string
	examples []example

	skip    string        // why it is not run; "" runs it
	last    bool          // run after all other pages
	status  []string      // of its last command; none is 0
	before  []string      // commands that the page does not show, run before it
	after   []string      // and behind it
	replace []replacement // of words, here and in what follows on the page
}

// example is a command and what the page says that it prints.
type example struct {
	command string
	output  []string
}

// replacement is a word of a page and the shell's word that stands for it here.
type replacement struct{ word, value string }

var (
	fenceForm  = regexp.MustCompile("^( *)```([a-z]*)$")
	markerForm = regexp.MustCompile(`^ *<!-- test: (.*) -->$`)
	// commandForm finds lines that somebody would type: they belong into blocks of
	// the language console, where they are run.
	commandForm = regexp.MustCompile(`^(\$ |(sbench|sbenchd|sbatch|curl|psql|pg_dump|pg_restore|createdb|make|systemctl|scrontab|promtool|rsync) )`)
)

// parsePage reads a page. A marker that is not understood, or stands above no
// block, is an error: it would let an example go untested unnoticed.
func parsePage(name, text string) (page, error) {
	p := page{name: name}
	next, pending, at := block{}, false, 0
	var open *block
	indent := ""
	for i, line := range strings.Split(text, "\n") {
		where := fmt.Sprintf("%s:%d", name, i+1)
		fence := fenceForm.FindStringSubmatch(line)
		switch {
		case open != nil && fence != nil && fence[2] == "":
			if err := open.finish(); err != nil {
				return p, fmt.Errorf("%s:%d: %w", name, open.line, err)
			}
			p.blocks, open = append(p.blocks, *open), nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		case fence != nil:
			next.line, next.language, indent = i+1, fence[2], fence[1]
			opened := next
			open, next, pending = &opened, block{}, false
		case markerForm.MatchString(line):
			if err := next.mark(markerForm.FindStringSubmatch(line)[1]); err != nil {
				return p, fmt.Errorf("%s: %w", where, err)
			}
			pending, at = true, i+1
		case strings.Contains(line, "<!-- test"):
			return p, fmt.Errorf("%s: a marker is a line <!-- test: … --> of its own", where)
		case pending && strings.TrimSpace(line) != "":
			return p, fmt.Errorf("%s:%d: a marker above no block", name, at)
		}
	}
	if open != nil || pending {
		return p, fmt.Errorf("%s: a block is not closed, or a marker stands above none", name)
	}
	return p, nil
}

// mark takes the words of one comment.
func (b *block) mark(text string) error {
	verb, rest, _ := strings.Cut(text, " ")
	switch verb {
	case "skip:":
		if b.skip = rest; len(rest) < 20 {
			return fmt.Errorf("%q is no reason to leave an example out", rest)
		}
	case "last":
		b.last = true
	case "status":
		b.status = strings.Split(rest, "|")
	case "run":
		b.before = append(b.before, rest)
	case "then":
		b.after = append(b.after, rest)
	case "put":
		from, to, ok := strings.Cut(rest, "=")
		if !ok || from == "" {
			return fmt.Errorf("put %q: want WORD=VALUE", rest)
		}
		b.replace = append(b.replace, replacement{from, to})
	default:
		return fmt.Errorf("%q: want skip:, last, status, run, then or put", text)
	}
	return nil
}

// finish splits the text of a console into its commands and their output, and
// refuses commands elsewhere.
func (b *block) finish() error {
	lines := strings.Split(strings.TrimSuffix(b.text, "\n"), "\n")
	if b.language != "console" {
		for _, line := range lines {
			if commandForm.MatchString(line) && b.skip == "" {
				return fmt.Errorf("%q is a command in a block that is not console: nobody runs it", line)
			}
		}
		return nil
	}
	goesOn := false
	for _, line := range lines {
		command, begins := strings.CutPrefix(line, "$ ")
		more, continues := strings.CutPrefix(line, "> ")
		switch {
		case begins:
			b.examples = append(b.examples, example{command: command})
		case len(b.examples) == 0:
			return fmt.Errorf("%q: a console begins with \"$ \"", line)
		case goesOn, continues:
			last := &b.examples[len(b.examples)-1]
			last.command += "\n" + more
		default:
			last := &b.examples[len(b.examples)-1]
			last.output = append(last.output, line)
		}
		goesOn = (begins || goesOn) && strings.HasSuffix(line, "\\")
	}
	return nil
}

// replaced is a text of the page with the words that stand for others here. A word
// stands alone: 17 is not in 170, nor in 1.17.
func replaced(text string, words []replacement) string {
	inWord := func(at int, also string) bool {
		if at < 0 || at >= len(text) {
			return false
		}
		c := rune(text[at])
		return c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c) || strings.ContainsRune(also, c)
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		at := slices.IndexFunc(words, func(r replacement) bool {
			return strings.HasPrefix(text[i:], r.word) && !inWord(i-1, ".") && !inWord(i+len(r.word), "")
		})
		if at < 0 {
			b.WriteByte(text[i])
			i++
			continue
		}
		b.WriteString(words[at].value)
		i += len(words[at].word)
	}
	return b.String()
}

// matches reports the first line of want that printed does not have, in order;
// "" is none. Numbers stand for any number, blanks for any, … for anything.
func matches(want []string, printed string) string {
	have := strings.Split(printed, "\n")
	for _, line := range want {
		if strings.TrimSpace(line) == "" {
			continue
		}
		form := regexp.QuoteMeta(strings.TrimSpace(line))
		form = regexp.MustCompile(`\d+(\\\.\d+)?`).ReplaceAllString(form, `[0-9.]+`)
		form = strings.ReplaceAll(regexp.MustCompile(`\s+`).ReplaceAllString(form, `\s+`), "…", ".*")
		re := regexp.MustCompile(form)
		i := slices.IndexFunc(have, re.MatchString)
		if i < 0 {
			return line
		}
		have = have[i+1:]
	}
	return ""
}

// readPages reads the README and all of the manual, in the order in which it is
// read: the way in first.
func readPages(t *testing.T, root string) []page {
	t.Helper()
	var names []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no page %s: %v", pattern, err)
		}
		names = append(names, found...)
	}
	first := []string{"docs/private-cluster.md", "README.md", "docs/first-hour.md"}
	var pages []page
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if name, err = filepath.Rel(root, name); err != nil {
			t.Fatal(err)
		}
		p, err := parsePage(name, string(text))
		if err != nil {
			t.Error(err)
			continue
		}
		pages = append(pages, p)
	}
	rank := func(p page) int {
		if i := slices.Index(first, p.name); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortStableFunc(pages, func(a, b page) int { return rank(a) - rank(b) })
	return pages
}

// notRun are the blocks of the manual that no test runs, and why.
func notRun(pages []page) string {
	var b strings.Builder
	for _, p := range pages {
		for _, k := range p.blocks {
			if k.skip != "" {
				first, _, _ := strings.Cut(strings.TrimSpace(k.text), "\n")
				fmt.Fprintf(&b, "%s: %s: %s\n", p.name, first, k.skip)
			}
		}
	}
	return b.String()
}

func TestParsePage(t *testing.T) {
	t.Parallel()
	text := strings.ReplaceAll(`# A page

<!-- test: put 17=$SWEEP -->
<!-- test: put lab=$SBENCH_SITE -->
<!-- test: status 0|4 -->
'''console
$ sbench show sweep 17   # of lab
Sweep 17: 3 settings
$ sbench submit \
    sweep.yaml
$ cat > a <<END
> b
> END
'''

- in a list
  <!-- test: skip: needs a service manager, which a test has not -->
  '''console
  $ systemctl start sbenchd
  '''
'''yaml
a: 1
'''
`, "'''", "```")
	got, err := parsePage("p.md", text)
	if err != nil {
		t.Fatal(err)
	}
	want := page{name: "p.md", blocks: []block{
		{
			line: 6, language: "console", status: []string{"0", "4"}, replace: []replacement{{"17", "$SWEEP"}, {"lab", "$SBENCH_SITE"}},
			text: "$ sbench show sweep 17   # of lab\nSweep 17: 3 settings\n$ sbench submit \\\n    sweep.yaml\n$ cat > a <<END\n> b\n> END\n",
			examples: []example{
				{command: "sbench show sweep 17   # of lab", output: []string{"Sweep 17: 3 settings"}},
				{command: "sbench submit \\\n    sweep.yaml"},
				{command: "cat > a <<END\nb\nEND"},
			},
		},
		{
			line: 18, language: "console", skip: "needs a service manager, which a test has not", text: "$ systemctl start sbenchd\n",
			examples: []example{{command: "systemctl start sbenchd"}},
		},
		{line: 21, language: "yaml", text: "a: 1\n"},
	}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(page{}, block{}, example{}, replacement{})); diff != "" {
		t.Error(diff)
	}
	for name, bad := range map[string]string{
		"a command elsewhere":    "'''\nsbench queue\n'''",
		"a command as text":      "'''text\n$ ls\n'''",
		"no prompt":              "'''console\nsbench queue\n'''",
		"a marker above text":    "<!-- test: last -->\nwords\n'''console\n$ ls\n'''",
		"a marker at the end":    "<!-- test: last -->\n",
		"no such marker":         "<!-- test: ignore -->\n'''console\n$ ls\n'''",
		"no reason":              "<!-- test: skip: later -->\n'''console\n$ ls\n'''",
		"a marker in a sentence": "so <!-- test: last --> there\n",
		"not closed":             "'''console\n$ ls\n",
		"a word without a value": "<!-- test: put 17 -->\n'''console\n$ ls\n'''",
	} {
		if _, err := parsePage("p.md", strings.ReplaceAll(bad, "'''", "```")); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestReplaced(t *testing.T) {
	t.Parallel()
	words := []replacement{{"17", "$A"}, {"18", "$(b 1)"}, {"lab", "lab2"}}
	for text, want := range map[string]string{
		"compare 17 17 18 170 1.17": "compare $A $A $(b 1) 170 1.17", "lab,lab": "lab2,lab2", "17:ab12": "$A:ab12", "label": "label",
	} {
		if got := replaced(text, words); got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	printed := "ID  NAME\n7   nightly\nSubmitted sweep 9: 2 settings, about 0.01 GPU-hours\n"
	for _, tc := range []struct {
		want []string
		miss string
	}{
		{nil, ""},
		{[]string{"ID NAME", "", "17   nightly"}, ""},
		{[]string{"Submitted sweep 17: 120 settings, about 75.0 GPU-hours"}, ""},
		{[]string{"Submitted … GPU-hours"}, ""},
		{[]string{"nightly", "ID"}, "ID"},
		{[]string{"Submitted sweep x"}, "Submitted sweep x"},
	} {
		if got := matches(tc.want, printed); got != tc.miss {
			t.Errorf("%q: missed %q, want %q", tc.want, got, tc.miss)
		}
	}
}
