package cli

import (
	"github.com/spf13/cobra"
)

func newDeadCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead COMMAND",
		Short: "the dead-letter list: runs that are not retried by themselves",
		Long: `A run is dead when trying again cannot help: the artefact is not the pinned one,
or the same fault came twice. It stays dead until it is released.`,
	}
	cmd.AddCommand(newDeadListCommand(a), newDeadShowCommand(a), newDeadReleaseCommand(a))
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newDeadListCommand(a *app) *cobra.Command {
	var t tableFlags
	var sweep int64
	cmd := &cobra.Command{
		Use: "list", Short: "list dead runs", Args: nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dead, err := a.client().Dead(cmd.Context(), sweep)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, dead)
			}
			tab := newTable("RUN>", "SWEEP>", "SETTING", "REPEAT>", "USER", "ATTEMPTS>", "SINCE", "REASON")
			for _, d := range dead {
				tab.add(d.RunID, d.SweepID, short(d.SettingHash), d.Repeat, d.User, d.Attempts, clock(&d.DeadSince), dash(d.Reason))
			}
			tab.print(a, t)
			return nil
		},
	}
	cmd.Flags().Int64Var(&sweep, "sweep", 0, "only of sweep `ID`")
	addTableFlags(cmd.Flags(), &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitUnreachable)
	return cmd
}

func newDeadShowCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show RUN", Short: "show a dead run with its attempts and reasons", Args: nArgs(1, 1, "RUN"),
		RunE: func(cmd *cobra.Command, args []string) error { return showRun(a, cmd, args[0]) },
	}
	exits(cmd, exitOK, exitFailed, exitUsage, exitUnreachable)
	return cmd
}

func newDeadReleaseCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "release RUN…", Short: "give dead runs another chance", Args: nArgs(1, -1, "RUN"),
		Long: `The runs go back to pending with a fresh retry budget.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var ids []int64
			for _, arg := range args {
				id, err := positiveID("run", arg)
				if err != nil {
					return err
				}
				ids = append(ids, id)
			}
			resp, err := a.client().ReleaseDead(cmd.Context(), ids)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, resp)
			}
			a.message("release: %s", resp.Text())
			return nil
		},
	}
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}
