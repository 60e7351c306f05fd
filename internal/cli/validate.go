package cli

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"sbench/internal/diag"
	"sbench/internal/setting"
	"sbench/internal/site"
	"sbench/internal/sweep"
)

const offlineHelp = `Flags, SBENCH_* variables and #SBENCH lines count as they do for sbench submit.
No daemon is asked.`

// offlineOptions are the flags of the commands that read a sweep file without a
// daemon.
type offlineOptions struct {
	submitOptions
}

func (o *offlineOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	o.AddFlags(f)
	f.Lookup("site").Usage = "the site's `file`: what hardware there is and where things lie"
}

// siteFile loads the file that --site names; nil where none is given. A site's
// name, from a #SBENCH line, is for the daemon.
func (src *source) siteFile() (*site.Site, error) {
	if !isSiteFile(src.options.Site) {
		return nil, nil
	}
	return loadSiteFile(src.options.Site)
}

func newValidateCommand(a *app) *cobra.Command {
	o := &offlineOptions{}
	cmd := &cobra.Command{
		Use:   "validate SWEEP.yaml",
		Short: "check a sweep file",
		Long: `Reports every fault of a sweep file, not only the first, as file:line:column:
message. - reads standard input. ` + offlineHelp,
		Example: "sbench validate nightly.yaml\nsbench validate --json - < nightly.yaml",
		Args:    nArgs(1, 1, "SWEEP.yaml"),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.validate(cmd, args[0]) },
	}
	o.flags(cmd)
	exits(cmd, exitOK, exitUsage)
	return cmd
}

// validation is the answer of validate --json.
type validation struct {
	Valid       bool      `json:"valid"`
	Settings    *int      `json:"settings"` // null where the file has faults
	Runs        *int      `json:"runs"`
	Diagnostics diag.List `json:"diagnostics"`
}

func (a *app) validate(cmd *cobra.Command, name string) error {
	settings, runs, warnings, err := a.check(cmd, name)
	out := validation{Diagnostics: warnings}
	var f *failure
	switch {
	case err == nil:
		out.Valid, out.Settings, out.Runs = true, &settings, &runs
	case errors.As(err, &f) && len(f.diagnostics) > 0:
		out.Diagnostics = f.diagnostics
	default:
		return err
	}
	if out.Diagnostics == nil {
		out.Diagnostics = diag.List{}
	}
	if a.json {
		return errors.Join(writeJSON(a.stdout, out), err)
	}
	if err == nil {
		a.warn(warnings)
		a.print("%s: valid: %s, %s\n", name, plural(settings, "setting"), plural(runs, "run"))
	}
	return err
}

// check expands the file and counts.
func (a *app) check(cmd *cobra.Command, name string) (settings, runs int, warnings diag.List, err error) {
	src, err := a.load(cmd.Flags(), name)
	if err != nil {
		return 0, 0, nil, err
	}
	s, err := src.siteFile()
	if err != nil {
		return 0, 0, nil, err
	}
	x, err := expand(src.file, src.shown, src.options, s)
	if err != nil {
		return 0, 0, nil, err
	}
	if sandboxes := sandboxFolders(x.Settings, s); len(sandboxes) > 0 {
		return 0, 0, nil, &failure{
			status: exitUsage, message: "an image is a folder: a sandbox's content can change while the sweep runs", reasons: sandboxes,
			hint: "build a file from it: apptainer build image.sif FOLDER",
		}
	}
	warnings = append(src.warnings, x.Warnings...)
	warnings.Sort()
	return len(x.Settings), x.Runs, warnings, nil
}

// sandboxFolders are the images of kind sif that are folders, as far as this
// machine can see them.
func sandboxFolders(settings []sweep.Expanded, s *site.Site) []string {
	var found []string
	for i := range settings {
		image := settings[i].Setting.Image
		path := image.Path
		if s != nil {
			path = s.ImagePath(path)
		}
		if image.Kind != setting.ImageSIF || !filepath.IsAbs(path) || slices.Contains(found, path) {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			found = append(found, path)
		}
	}
	return found
}
