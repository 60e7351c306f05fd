package cli

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"

	"sbench/internal/diag"
	"sbench/internal/sweep"
)

// directiveFlags reads the #SBENCH lines of a sweep file as sbatch reads #SBATCH
// lines. text is the file's, for the caret.
func directiveFlags(shown string, text []byte, directives []sweep.Directive) (*pflag.FlagSet, error) {
	fs := submitFlags(&submitOptions{})
	faults := diag.NewCollector(shown, text)
	fail := func(line int, message string) (*pflag.FlagSet, error) {
		faults.Errorf(diag.Pos{Line: line, Column: 1}, "see sbench submit --help for the flags", "#SBENCH: %s", message)
		return nil, faulty(shown, faults.List())
	}
	for _, d := range directives {
		words, err := splitWords(d.Text)
		if err != nil {
			return fail(d.Line, err.Error())
		}
		switch err := fs.Parse(words); {
		case errors.Is(err, pflag.ErrHelp):
			return fail(d.Line, "unknown flag: --help")
		case err != nil:
			return fail(d.Line, lowerFirst(err.Error()))
		case fs.NArg() > 0:
			return fail(d.Line, "unexpected word \""+fs.Arg(0)+"\": quote values with blanks")
		}
	}
	return fs, nil
}

// splitWords splits a directive at blanks; quotes keep blanks and a # after a
// blank begins a comment.
func splitWords(s string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune
	inWord := false
	for _, r := range s {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '"' || r == '\'':
			quote, inWord = r, true
		case r == ' ' || r == '\t':
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		case r == '#' && !inWord:
			return words, nil
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote is not closed")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
