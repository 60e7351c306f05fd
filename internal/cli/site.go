package cli

import (
	"github.com/spf13/cobra"

	"sbench/internal/api"
)

func newSiteCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "site COMMAND",
		Short: "list sites, and stop or resume feeding them",
		Long:  `A site is one Slurm cluster. Pausing it is the kill switch.`,
	}
	cmd.AddCommand(newSiteListCommand(a),
		newSiteModeCommand(a, "pause", "paused", "submit nothing more, at once", `Nothing more is submitted to the site and nothing held there is released. What
runs goes on; sbench cancel --all --site NAME ends that too.`),
		newSiteModeCommand(a, "drain", "drain", "finish what is in Slurm, take nothing new", `New sweeps are refused and pending runs stay pending; what is already in Slurm
is tracked and collected to its end.`),
		newSiteModeCommand(a, "resume", "active", "feed the site again", `Undoes pause and drain.`))
	cmd.AddCommand(newSiteGCCommand(a))
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newSiteGCCommand(a *app) *cobra.Command {
	var req api.RemoveFilesRequest
	var t tableFlags
	cmd := &cobra.Command{
		Use: "gc SITE", Short: "remove files of attempts that count for nothing", Args: nArgs(1, 1, "SITE"),
		Long: `Removes the files of attempts that were refused, failed or invalid, and what
runners left that ended without sealing, once the site's retention is over. The
daemon does the same every hour. Valid attempts, attempts that were not collected
and whatever Slurm may still run are never touched; the rows of attempts stay.
Operators only.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			removed, err := a.client().RemoveFiles(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, removed)
			}
			tab := newTable("RUN", "FOLDER", "ENDED", "WHY", "FILES", "BYTES")
			for _, r := range removed.Attempts {
				tab.add(r.RunID, r.Folder, r.ExitClass, r.Reason, r.Files, r.Bytes)
			}
			tab.print(a, t)
			did := "removed"
			if req.DryRun {
				did = "would remove"
			}
			a.message("%s %d files of %d attempts, %d bytes", did, removed.Files, len(removed.Attempts), removed.Bytes)
			return nil
		},
	}
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "say what would go, and remove nothing")
	addTableFlags(cmd.Flags(), &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newSiteListCommand(a *app) *cobra.Command {
	var t tableFlags
	cmd := &cobra.Command{
		Use: "list", Short: "list the sites that the daemon feeds", Args: nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			sites, err := a.client().Sites(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, sites)
			}
			tab := newTable("SITE", "CLUSTER", "CLASS", "MODE", "BY", "SINCE", "REASON")
			for _, s := range sites {
				tab.add(s.Name, s.Cluster, s.HardwareClass, modeCell(s.Mode), dash(s.ChangedBy), clock(s.ChangedAt), dash(s.Reason))
			}
			tab.print(a, t)
			return nil
		},
	}
	addTableFlags(cmd.Flags(), &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitUnreachable)
	return cmd
}

func modeCell(mode string) cell {
	if mode == "active" {
		return cell{mode, green}
	}
	return cell{mode, red}
}

func newSiteModeCommand(a *app, word, mode, short, long string) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: word + " SITE", Short: short, Long: long + " Operators only.", Args: nArgs(1, 1, "SITE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.client().SetSiteMode(cmd.Context(), args[0], api.SiteRequest{Mode: mode, Reason: reason})
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, s)
			}
			a.message("site %s is %s", s.Name, s.Mode)
			return nil
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "a `text` shown to users")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}
