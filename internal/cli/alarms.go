package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sbench/internal/api"
)

func newAlarmsCommand(a *app) *cobra.Command {
	var q api.AlarmQuery
	var since string
	var flags tableFlags
	cmd := &cobra.Command{
		Use:   "alarms",
		Short: "show what nobody would notice by itself",
		Long: `Lists sweeps that ended with fewer valid runs than were asked for, sweeps under
way in which nothing happens, schedules that fired nothing or missed their
window, sites on which too many runs are refused before they measure, settings
of schedules without a recent valid result, nights that stay unjudged, and nodes
that are slower than they were or, two nights running, than the others.

Ends with 4 where there is an alarm.`,
		Example: "sbench alarms\nsbench alarms --since now-7days --pass-rate 0.99 --json",
		Args:    nArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if since != "" {
				t, err := pastTime(since, a.now())
				if err != nil {
					return usagef("--since: %v", err)
				}
				q.Since = t
			}
			if q.PassRate < 0 || q.PassRate > 1 || q.StuckAfter < 0 || q.StaleAge < 0 {
				return usagef("--pass-rate is between 0 and 1, --stuck and --stale are not negative")
			}
			list, err := a.client().Alarms(cmd.Context(), q)
			if err != nil {
				return err
			}
			if a.json {
				err = writeJSON(a.stdout, list)
			} else {
				t := newTable("KIND", "SITE", "SUBJECT", "SINCE", "DETAIL")
				for i := range list {
					t.add(cell{text: list[i].Kind, style: yellow}, list[i].Site, list[i].Subject, clock(&list[i].Since), list[i].Detail)
				}
				t.print(a, flags)
			}
			if err == nil && len(list) > 0 {
				err = &failure{status: exitIncomplete, message: plural(len(list), "alarm")}
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&since, "since", "S", "", "what ended from this `time` on (default now-2days)")
	f.DurationVar(&q.StuckAfter, "stuck", 0, fmt.Sprintf("how `long` nothing may happen in a sweep under way (default %v)", 8*time.Hour))
	f.DurationVar(&q.StaleAge, "stale", 0, fmt.Sprintf("how `old` the latest valid result of a schedule's setting may be (default %v)", 72*time.Hour))
	f.Float64Var(&q.PassRate, "pass-rate", 0, "the least `share` of runs that pass the pre-flight checks (default 0.95)")
	addTableFlags(f, &flags)
	exits(cmd, exitOK, exitFailed, exitUsage, exitIncomplete, exitUnreachable)
	return cmd
}
