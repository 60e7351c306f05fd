package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/api"
	"sbench/internal/sweep"
)

func newSettingsCommand(a *app) *cobra.Command {
	o := &offlineOptions{}
	var t tableFlags
	cmd := &cobra.Command{
		Use:   "settings SWEEP.yaml",
		Short: "print the settings that a sweep file expands to",
		Long: `Prints the settings in their fixed order: the first axis of the matrix varies
slowest. The table has the axes that differ; --json has all of them, and the
canonical spec whose SHA-256 is the setting_hash. ` + offlineHelp,
		Example: "sbench settings nightly.yaml\nsbench settings --json nightly.yaml | jq -r '.[].setting_hash'",
		Args:    nArgs(1, 1, "SWEEP.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			src, err := a.load(cmd.Flags(), args[0])
			if err != nil {
				return err
			}
			s, err := src.siteFile()
			if err != nil {
				return err
			}
			x, err := expand(src.file, src.shown, src.options, s)
			if err != nil {
				return err
			}
			warnings := append(src.warnings, x.Warnings...)
			warnings.Sort()
			if a.json {
				return writeSettings(a.stdout, x.Settings)
			}
			a.warn(warnings)
			settingsOfSweep(x.Settings).print(a, t)
			return nil
		},
	}
	o.flags(cmd)
	addTableFlags(cmd.Flags(), &t)
	exits(cmd, exitOK, exitUsage)
	return cmd
}

// writeSettings prints a JSON array with one setting per line, which is never
// held in memory as a whole. It writes by hand what encoding/json would take
// twice as long for; canonical_spec has the very bytes that were hashed.
func writeSettings(w io.Writer, settings []sweep.Expanded) error {
	b := bufio.NewWriterSize(w, 1<<16)
	_, _ = b.WriteString("[\n") // errors stay with the buffer
	var line []byte
	for i := range settings {
		s := &settings[i]
		line = append(line[:0], `{"setting_hash":"`...)
		line = append(line, s.Hash...)
		line = append(line, `","series_hash":"`...)
		line = append(line, s.Series...)
		line = append(line, `","axes":`...)
		var err error
		if line, err = appendAxes(line, api.Axes(&s.Setting)); err != nil {
			return err
		}
		line = append(line, `,"canonical_spec":`...)
		line = append(line, s.Setting.Canonical()...)
		line = append(line, '}')
		if i < len(settings)-1 {
			line = append(line, ',')
		}
		_, _ = b.Write(append(line, '\n'))
	}
	_, _ = b.WriteString("]\n")
	return b.Flush()
}

// appendAxes appends the axes as an object with its keys in order.
func appendAxes(b []byte, axes map[string]any) ([]byte, error) {
	keys := make([]string, 0, len(axes))
	for k := range axes {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		name, err := appendJSON(b, k)
		if err != nil {
			return b, err
		}
		if b, err = appendJSON(append(name, ':'), axes[k]); err != nil {
			return b, err
		}
	}
	return append(b, '}'), nil
}

// appendJSON appends one value. Texts without anything to escape, whole numbers
// and truth values are written directly.
func appendJSON(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case string:
		if !strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
			return append(append(append(b, '"'), v...), '"'), nil
		}
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return b, err
	}
	return append(b, bytes.TrimRight(text.Bytes(), "\n")...), nil
}

func settingsOfSweep(settings []sweep.Expanded) *table {
	axes := make([]map[string]any, len(settings))
	for i := range settings {
		axes[i] = api.Axes(&settings[i].Setting)
	}
	moving := movingAxes(axes)
	t := newTable(append([]string{"SETTING"}, labels(moving)...)...)
	for i := range settings {
		row := []any{short(settings[i].Hash)}
		for _, k := range moving {
			row = append(row, axisText(axes[i][k]))
		}
		t.add(row...)
	}
	return t
}
