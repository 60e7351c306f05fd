package cli

import (
	"github.com/spf13/cobra"

	"sbench/internal/version"
)

func newVersionCommand(a *app) *cobra.Command {
	var daemon bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := struct {
				Version string  `json:"version"`
				Daemon  *string `json:"daemon_version"`
				User    *string `json:"user"`
			}{Version: version.String()}
			if daemon {
				v, err := a.client().Version(cmd.Context())
				if err != nil {
					return err
				}
				out.Daemon, out.User = &v.Version, &v.User
			}
			if a.json {
				return writeJSON(a.stdout, out)
			}
			a.print("sbench %s\n", version.Long())
			if daemon {
				a.print("sbenchd %s, which takes you for %s\n", *out.Daemon, *out.User)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&daemon, "daemon", false, "ask the daemon too")
	exits(cmd, exitOK, exitFailed, exitUsage, exitUnreachable)
	return cmd
}
