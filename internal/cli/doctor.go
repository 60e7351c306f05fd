package cli

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sbench/internal/devcluster"
)

// doctorReport is the answer of `sbench doctor --json`.
type doctorReport struct {
	OK       bool               `json:"ok"`
	Platform string             `json:"platform"`
	Checks   []devcluster.Check `json:"checks"`
}

// newDoctorCommand returns `sbench doctor`.
func newDoctorCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "say what is missing on this machine and how to get it",
		Long: `Checks what the private cluster, the tests and the demo need: Slurm, MUNGE,
MariaDB, PostgreSQL, containers, the demo engine's parts, namespaces, disk and
clock. For everything that is missing it prints the command that gets it.
Exit status 0, or 1 if anything necessary is missing.`,
		Args: nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := devDir(dir)
			if err != nil {
				return err
			}
			r := doctorReport{OK: true, Platform: devcluster.Platform(), Checks: devcluster.Diagnose(cmd.Context(), d)}
			for _, c := range r.Checks {
				r.OK = r.OK && !c.Failed()
			}
			if wantsJSON(cmd) {
				err = writeDevJSON(cmd.OutOrStdout(), r)
			} else {
				err = writeDoctor(cmd.OutOrStdout(), r)
			}
			if err == nil && !r.OK {
				err = &failure{status: exitFailed, quiet: true}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "where the private cluster would be (default as sbench dev)")
	exits(cmd, exitOK, exitFailed, exitUsage)
	return cmd
}

func writeDoctor(w io.Writer, r doctorReport) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "CHECK\tSTATUS\tFOUND\tWANT\tFOR")
	for _, c := range r.Checks {
		found, want := c.Found, c.Want
		if found == "" {
			found = "-"
		}
		if want == "" {
			want = "-"
		}
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", c.Name, c.Status, found, want, c.For)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, c := range r.Checks {
		if c.Fix != "" {
			if _, err := fmt.Fprintf(w, "\n%s (%s):\n  %s\n", c.Name, c.Status, c.Fix); err != nil {
				return err
			}
		}
	}
	if r.OK {
		_, err := fmt.Fprintln(w, "\nnothing necessary is missing")
		return err
	}
	_, err := fmt.Fprintf(w, "\nall at once, on Debian: %s\n", devcluster.InstallHint)
	return err
}
