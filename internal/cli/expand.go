package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"sbench/internal/api"
	"sbench/internal/diag"
	"sbench/internal/site"
	"sbench/internal/sweep"
)

// readSweepFile reads a sweep file, or standard input for "-". One byte more
// than a sweep file may have is enough to be told so by the parser.
func (a *app) readSweepFile(name string) (shown string, text []byte, err error) {
	r := a.stdin
	shown = "-"
	if name != "-" {
		shown = name
		f, err := os.Open(name)
		if err != nil {
			return "", nil, &failure{status: exitUsage, message: lowerFirst(err.Error()), err: err}
		}
		defer f.Close()
		r = f
	}
	text, err = io.ReadAll(io.LimitReader(r, sweep.MaxBytes+1))
	if err != nil {
		return "", nil, &failure{status: exitUsage, message: fmt.Sprintf("read %s: %v", shown, err), err: err}
	}
	return shown, text, nil
}

// parse reads a sweep file's text; a file with faults is a failure that lists
// all of them.
func parse(shown string, text []byte) (*sweep.File, diag.List, error) {
	f, list := sweep.Parse(text, shown)
	if f == nil {
		return nil, nil, faulty(shown, list)
	}
	return f, list, nil
}

// expand returns the settings of a file, with what the options say about them,
// and the warnings.
func expand(f *sweep.File, shown string, o api.Options, s *site.Site) (sweep.Expansion, error) {
	options := sweep.Options{
		Set: o.Set, GRES: o.Gres, Constraint: o.Constraint, Switches: o.Switches, Exclusive: o.Exclusive, Repeats: o.Repeats,
	}
	if s != nil {
		options.HardwareByGRES = s.HardwareByGRES
	}
	x, list := sweep.Expand(f, options)
	if list.HasErrors() {
		return x, faulty(shown, list)
	}
	return x, nil
}

// faulty is the failure of a file with faults.
func faulty(shown string, list diag.List) *failure {
	n := len(list.Errors())
	return &failure{status: exitUsage, message: fmt.Sprintf("%s: %s", shown, plural(n, "fault")), diagnostics: list}
}

// source is a sweep file that was read, with the flags that go with it.
type source struct {
	shown   string
	text    []byte
	file    *sweep.File
	flags   *submitOptions
	options api.Options
	// warnings of reading the file.
	warnings diag.List
}

// isSiteFile tells the path of a site file from the name of a site.
func isSiteFile(site string) bool {
	return strings.ContainsRune(site, '/') || strings.HasSuffix(site, ".yaml") || strings.HasSuffix(site, ".yml")
}

// loadSiteFile reads the site file of the commands that work without a daemon.
func loadSiteFile(path string) (*site.Site, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &failure{status: exitUsage, message: lowerFirst(err.Error()), err: err}
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, site.MaxBytes+1))
	if err != nil {
		return nil, &failure{status: exitUsage, message: fmt.Sprintf("read %s: %v", path, err), err: err}
	}
	s, list := site.Load(text, path)
	if s == nil {
		return nil, faulty(path, list)
	}
	return s, nil
}
