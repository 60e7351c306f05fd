package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
)

func newThrottleCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "throttle SWEEP N", Short: "limit how many tasks of a sweep run at once", Args: nArgs(2, 2, "SWEEP N"),
		Long: `Changes what sbench submit --max-inflight has set, also of arrays that are in
Slurm already: they share the limit, and each of them may run one task at least.
What runs goes on. 0 is no limit.`,
		Example: "sbench throttle 17 4\nsbench throttle 17 0",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := positiveID("sweep", args[0])
			if err != nil {
				return err
			}
			most, err := strconv.Atoi(args[1])
			if err != nil || most < 0 {
				return &failure{status: exitUsage, message: fmt.Sprintf("%q is not a number of tasks", args[1]), hint: "0 is no limit"}
			}
			resp, err := a.client().Throttle(cmd.Context(), id, most)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, resp)
			}
			limit := fmt.Sprintf("at most %d tasks at once", resp.MaxInflight)
			if resp.MaxInflight == 0 {
				limit = "no limit of tasks at once"
			}
			a.message("sweep %d: %s; arrays in Slurm that are told: %d", resp.SweepID, limit, resp.Batches)
			return nil
		},
	}
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}
