package cli

import (
	"fmt"

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
	cmd.AddCommand(newSiteCheckCommand(a), newSiteGCCommand(a))
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newSiteCheckCommand(a *app) *cobra.Command {
	var req api.SiteCheckRequest
	var t tableFlags
	cmd := &cobra.Command{
		Use: "check SITE", Short: "hold the site file against the real Slurm", Args: nArgs(1, 1, "SITE"),
		Long: `Asks Slurm whether what the site file says exists and works: partitions, GRES and
their counts, features, QOS, accounts, topology, limits, versions. Looks whether
the daemon can use the shared folders, and submits a job of at most a minute for
each kind of hardware, which looks at the node: is the spool shared, what can be
written, is there a container program, does its clock agree. One line for each
thing, with what to do where it is not as it should be; unknown is what nobody
could tell, for example because no node was free for a minute. Operators only.`,
		Example: "sbench site check lab\nsbench site check lab --no-job --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := a.client().CheckSite(cmd.Context(), args[0], req)
			if err != nil {
				return err
			}
			if a.json {
				if err := writeJSON(a.stdout, found); err != nil {
					return err
				}
			} else {
				tab := newTable("VERDICT", "CHECK", "SUBJECT", "FOUND", "TO_DO")
				for _, p := range found.Checks {
					tab.add(probeCell(p.Verdict), p.Check, dash(p.Subject), printable(p.Detail), dash(printable(p.Todo)))
				}
				tab.print(a, t)
			}
			if found.OK {
				return nil
			}
			failed := 0
			for _, p := range found.Checks {
				if p.Verdict == api.VerdictFail {
					failed++
				}
			}
			return &failure{status: exitFailed, message: fmt.Sprintf("site %s is not as its file says: %s failed", found.Site, plural(failed, "check"))}
		},
	}
	cmd.Flags().BoolVar(&req.NoJob, "no-job", false, "submit no job: leave the nodes out")
	addTableFlags(cmd.Flags(), &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func probeCell(verdict string) cell {
	switch verdict {
	case api.VerdictPass:
		return cell{verdict, green}
	case api.VerdictFail:
		return cell{verdict, red}
	}
	return cell{verdict, yellow}
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
