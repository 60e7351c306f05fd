package cli

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/api"
)

func newQuotaCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quota COMMAND",
		Short: "set and list quotas of GPU-hours",
		Long: `A quota bounds the GPU-hours that an account, a user, or each user may hold in a
calendar period (UTC). A sweep is admitted where what Slurm has accounted for in
the period, what active sweeps are forecast to hold yet, and its own forecast fit
into every quota that binds it; a refusal says by how much they do not.`,
	}
	cmd.AddCommand(newQuotaSetCommand(a), newQuotaListCommand(a))
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func newQuotaSetCommand(a *app) *cobra.Command {
	var req api.QuotaRequest
	var each bool
	cmd := &cobra.Command{
		Use: "set GPU_HOURS|none", Short: "set a quota, or take it away", Args: nArgs(1, 1, "GPU_HOURS"),
		Long:    `Sets how many GPU-hours may be held in a period; none takes the quota away. Admins only.`,
		Example: "sbench quota set 5000 --account ml --period month\nsbench quota set 200 --account ml --each-user --period week\nsbench quota set none --account ml --period month",
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != "none" {
				hours, err := strconv.ParseFloat(args[0], 64)
				if err != nil || !(hours >= 0 && hours < 1e12) {
					return usagef("%q is no number of GPU-hours", args[0])
				}
				req.GPUHours = &hours
			}
			if each {
				if req.User != "" {
					return usagef("--user and --each-user exclude each other")
				}
				req.User = "*"
			}
			q, err := a.client().SetQuota(cmd.Context(), req)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, q)
			}
			a.message("quota of %s, %s, %s: %s GPU-hours a %s", all(q.Site), all(q.Account), quotaUser(q.User), hoursOrNone(q.GPUHours), q.Period)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Site, "site", "", "only at this `site`")
	f.StringVarP(&req.Account, "account", "A", "", "only of this `account`")
	f.StringVarP(&req.User, "user", "u", "", "only of this `user`")
	f.BoolVar(&each, "each-user", false, "of each user for himself")
	f.StringVar(&req.Period, "period", "month", "day, week, month, quarter or year")
	f.StringVar(&req.Comment, "comment", "", "a `text` beside it")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func quotaUser(name string) string {
	switch name {
	case "":
		return "all users together"
	case "*":
		return "each user"
	}
	return name
}

func hoursOrNone(v *float64) string {
	if v == nil {
		return "no limit of"
	}
	return number(v)
}

func newQuotaListCommand(a *app) *cobra.Command {
	var t tableFlags
	var user string
	cmd := &cobra.Command{
		Use: "list", Short: "list the quotas that bind you, with what is gone of them; to operators all", Args: nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client().Quotas(cmd.Context(), user)
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.stdout, list)
			}
			tab := newTable("ID>", "SITE", "ACCOUNT", "USER", "PERIOD", "GPU_HOURS>", "USED>", "RESERVED>", "LEFT>", "ENDS", "COMMENT")
			for _, q := range list {
				tab.add(q.ID, all(q.Site), all(q.Account), quotaUser(q.User), q.Period, number(q.GPUHours), number(q.UsedGPUHours), number(q.ReservedGPUHours),
					number(left(q)), quotaEnd(q.PeriodEnd), dash(q.Comment))
			}
			tab.print(a, t)
			return nil
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "the quotas of each user as they are for this `user` (operators)")
	addTableFlags(cmd.Flags(), &t)
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

// left is what may still be asked for; below 0 where more was held than forecast.
func left(q api.Quota) *float64 {
	if q.GPUHours == nil || q.UsedGPUHours == nil || q.ReservedGPUHours == nil {
		return nil
	}
	v := *q.GPUHours - *q.UsedGPUHours - *q.ReservedGPUHours
	return &v
}

func quotaEnd(t *time.Time) string { return clock(t) }
