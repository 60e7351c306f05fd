package jobscript

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode"
	"unicode/utf8"
)

// quoting are the functions that a template may print values with. Those of
// #SBATCH values return text that sbatch's option parser, which knows quotes,
// backslashes and comments, reads as one value; sh quotes for the shell.
var quoting = template.FuncMap{
	"name":       checked("a name", `[A-Za-z0-9][A-Za-z0-9_.@+-]*`, 255),
	"names":      checked("names", `[A-Za-z0-9][A-Za-z0-9_.@+-]*(,[A-Za-z0-9][A-Za-z0-9_.@+-]*)*`, 1000),
	"gres":       checked("a GRES", `[a-z][a-z0-9_]*(:[A-Za-z0-9][A-Za-z0-9_.-]*)?(:[0-9]{1,4})?(,[a-z][a-z0-9_]*(:[A-Za-z0-9][A-Za-z0-9_.-]*)?(:[0-9]{1,4})?)*`, 255),
	"constraint": checked("a constraint", `[A-Za-z0-9_.&|*()\[\]:=,-]+`, 1000),
	"hosts":      checked("a node list", `[A-Za-z0-9][A-Za-z0-9_.,\[\]-]*`, 100_000),
	"dependency": checked("a dependency", `[a-z]+(:[0-9]+(_[0-9*]+)?(\+[0-9]+)?)*([,?][a-z]+(:[0-9]+(_[0-9*]+)?(\+[0-9]+)?)*)*`, 10_000),
	"digest":     checked("a digest", `sha256:[0-9a-f]{64}`, 71),
	"memory":     checked("an amount of memory", `[0-9]{1,12}[KMGT]?`, 13),
	"option":     option,
	"text":       text,
	"path":       path,
	"log":        logPath,
	"int":        integer,
	"minutes":    minutes,
	"seconds":    seconds,
	"array":      array,
	"sh":         shell,
	"shpath":     shellPath,
}

// checked accepts what matches a pattern as a whole. Such values need no quotes,
// but get them, because & | ( ) * are no one's business to guess about.
func checked(what, pattern string, longest int) func(string) (string, error) {
	form := regexp.MustCompile(`^(?:` + pattern + `)$`)
	return func(v string) (string, error) {
		// $ would match before a final newline in some dialects; Go's does not.
		if len(v) > longest || !form.MatchString(v) {
			return "", fmt.Errorf("%q is not %s", shorten(v), what)
		}
		if strings.ContainsAny(v, "&|()*[]?") {
			return `"` + v + `"`, nil
		}
		return v, nil
	}
}

// text makes free text inert: what sbatch or a list could read otherwise becomes
// an underscore.
func text(v string) string {
	v = strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError, !unicode.IsPrint(r), strings.ContainsRune("\"'`\\|$", r):
			return '_'
		}
		return r
	}, v)
	for len(v) > 500 {
		_, size := utf8.DecodeLastRuneInString(v)
		v = v[:len(v)-size]
	}
	return `"` + v + `"`
}

var (
	optionName  = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	optionValue = regexp.MustCompile(`^[A-Za-z0-9 _.,:;=@%+/&|*()\[\]-]+$`)
)

// option writes an option that the site's administrator chose.
func option(o Option) (string, error) {
	if !optionName.MatchString(o.Name) {
		return "", fmt.Errorf("%q is not an option of sbatch", shorten(o.Name))
	}
	if o.Value == "" {
		return "--" + o.Name, nil
	}
	if !optionValue.MatchString(o.Value) {
		return "", fmt.Errorf("value %q of option --%s holds a character that Slurm gives a meaning", shorten(o.Value), o.Name)
	}
	return "--" + o.Name + `="` + o.Value + `"`, nil
}

// path quotes an absolute path. Slurm expands % in log paths and reads quotes and
// backslashes everywhere, so a path that holds one is refused.
func path(v string) (string, error) {
	if err := checkPath(v); err != nil {
		return "", err
	}
	return `"` + v + `"`, nil
}

func checkPath(v string) error {
	bad := func(r rune) bool {
		return r == utf8.RuneError || !unicode.IsPrint(r) || strings.ContainsRune("\"'`\\%$", r)
	}
	switch {
	case !filepath.IsAbs(v) || filepath.Clean(v) != v:
		return fmt.Errorf("%q is not a clean absolute path", shorten(v))
	case len(v) > 1000 || strings.ContainsFunc(v, bad):
		return fmt.Errorf("path %q holds a character that Slurm gives a meaning", shorten(v))
	}
	return nil
}

var patternForm = regexp.MustCompile(`^[A-Za-z0-9_./%-]+$`)

// logPath is a path below dir whose end is a pattern of Slurm's (%A, %a…).
func logPath(dir, pattern string) (string, error) {
	if err := checkPath(dir); err != nil {
		return "", err
	}
	if !patternForm.MatchString(pattern) {
		return "", fmt.Errorf("%q is not a log file pattern", pattern)
	}
	return `"` + dir + "/" + pattern + `"`, nil
}

func integer(v any) (string, error) {
	switch n := v.(type) {
	case int:
		return strconv.Itoa(n), nil
	case int64:
		return strconv.FormatInt(n, 10), nil
	}
	return "", fmt.Errorf("%T is not an integer", v)
}

// minutes writes a time limit as Slurm does, D-HH:MM:SS, in whole minutes.
func minutes(d time.Duration) (string, error) {
	if d < time.Minute || d%time.Minute != 0 {
		return "", fmt.Errorf("time limit %v is not in whole minutes", d)
	}
	m := int64(d / time.Minute)
	return fmt.Sprintf("%d-%02d:%02d:00", m/1440, m/60%24, m%60), nil
}

func seconds(d time.Duration) (string, error) {
	if d < 0 {
		return "", fmt.Errorf("%v is negative", d)
	}
	return strconv.FormatInt(int64(d/time.Second), 10), nil
}

func array(tasks, throttle int) (string, error) {
	if tasks < 1 || throttle < 0 {
		return "", fmt.Errorf("an array of %d tasks, %d at once", tasks, throttle)
	}
	s := fmt.Sprintf("0-%d", tasks-1)
	if tasks == 1 {
		s = "0"
	}
	if throttle > 0 {
		s += fmt.Sprintf("%%%d", throttle)
	}
	return s, nil
}

// shell quotes for the shell: nothing inside single quotes has a meaning.
func shell(v string) (string, error) {
	if strings.ContainsAny(v, "\x00\r\n") || !utf8.ValidString(v) {
		return "", fmt.Errorf("%q cannot stand in a script", shorten(v))
	}
	return `'` + strings.ReplaceAll(v, `'`, `'\''`) + `'`, nil
}

// shellPath quotes a path for the shell under path's rules.
func shellPath(v string) (string, error) {
	if err := checkPath(v); err != nil {
		return "", err
	}
	return shell(v)
}

func shorten(v string) string {
	if len(v) > 100 {
		return v[:100] + "…"
	}
	return v
}
