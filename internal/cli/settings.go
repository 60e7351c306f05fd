package cli

import (
	"bufio"
	"encoding/json"
	"io"

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
			io.WriteString(a.stderr, warnings.Text())
			settingsOfSweep(x.Settings).print(a, t)
			return nil
		},
	}
	o.flags(cmd)
	addTableFlags(cmd.Flags(), &t)
	exits(cmd, exitOK, exitUsage)
	return cmd
}

// expandedSetting is one element of settings --json.
type expandedSetting struct {
	SettingHash   string          `json:"setting_hash"`
	SeriesHash    string          `json:"series_hash"`
	Axes          map[string]any  `json:"axes"`
	CanonicalSpec json.RawMessage `json:"canonical_spec"`
}

// writeSettings prints a JSON array with one setting per line, which is never
// held in memory as a whole.
func writeSettings(w io.Writer, settings []sweep.Expanded) error {
	b := bufio.NewWriterSize(w, 1<<16)
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	b.WriteString("[\n")
	for i := range settings {
		s := &settings[i]
		if i > 0 {
			b.WriteByte(',')
		}
		// The encoder leaves the canonical bytes as they were hashed.
		if err := e.Encode(expandedSetting{s.Hash, s.Series, api.Axes(&s.Setting), s.Setting.Canonical()}); err != nil {
			return err
		}
	}
	b.WriteString("]\n")
	return b.Flush()
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
