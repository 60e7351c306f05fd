package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/api"
)

type actionOptions struct {
	action     api.Action
	all        bool
	user, site string
	sweep      int64
	reason     string
}

const targetHelp = `ID is the number of a sweep; the word setting or run before it says that it is
a setting's hash (or the beginning of one) or the number of a run.`

func newCancelCommand(a *app) *cobra.Command {
	cmd := newActionCommand(a, api.ActionCancel, "cancel sweeps, settings or runs", `Runs that have not started are cancelled at once; running ones are told to stop
and get the site's grace to seal what they have. Only own sweeps can be
cancelled; operators can cancel everybody's.`)
	cmd.Example = "sbench cancel 17\nsbench cancel run 4711\nsbench cancel setting 5b6fc1a2 --sweep 17\nsbench cancel --all --site north"
	return cmd
}

func newHoldCommand(a *app) *cobra.Command {
	return newActionCommand(a, api.ActionHold, "keep what has not started from starting", `Runs that are pending stay so until sbench release; what is in Slurm or running
goes on.`)
}

func newReleaseCommand(a *app) *cobra.Command {
	return newActionCommand(a, api.ActionRelease, "let held work start", `Undoes sbench hold and sbench submit --hold.`)
}

func newRequeueCommand(a *app) *cobra.Command {
	return newActionCommand(a, api.ActionRequeue, "give failed, dead or cancelled runs another chance", `Runs that ended without a valid result go back to pending with a fresh retry
budget. Valid results are never discarded.`)
}

func newActionCommand(a *app, action api.Action, short, long string) *cobra.Command {
	o := &actionOptions{action: action}
	cmd := &cobra.Command{
		Use:   string(action) + " [sweep|setting|run] ID…",
		Short: short,
		Long:  long + "\n\n" + targetHelp,
		RunE:  func(cmd *cobra.Command, args []string) error { return o.run(a, cmd, args) },
	}
	f := cmd.Flags()
	f.Int64Var(&o.sweep, "sweep", 0, "with setting: only in sweep `ID`")
	f.StringVar(&o.reason, "reason", "", "a `text` kept with the change of state")
	if action == api.ActionCancel {
		f.BoolVar(&o.all, "all", false, "everything of mine; as an operator, everything of everybody")
		f.StringVarP(&o.user, "user", "u", "", "with --all: only of `user`")
		f.StringVar(&o.site, "site", "", "with --all: only on site `name`")
	}
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func (o *actionOptions) run(a *app, cmd *cobra.Command, args []string) error {
	req := api.ActionRequest{
		Action: o.action, Kind: api.KindSweep, All: o.all, User: o.user, Site: o.site, Sweep: o.sweep, Reason: o.reason, IDs: []string{},
	}
	if len(args) > 0 {
		switch k := api.Kind(args[0]); k {
		case api.KindSweep, api.KindSetting, api.KindRun:
			req.Kind, args = k, args[1:]
		}
	}
	switch {
	case o.all && len(args) > 0:
		return usagef("--all and %q: give one or the other", args[0])
	case !o.all && len(args) == 0:
		return &failure{status: exitUsage, message: "missing argument: ID", hint: "usage: " + cmd.UseLine()}
	case !o.all && (o.user != "" || o.site != ""):
		return usagef("--user and --site go with --all")
	case o.sweep != 0 && req.Kind != api.KindSetting:
		return usagef("--sweep goes with setting HASH")
	}
	for _, arg := range args {
		if req.Kind == api.KindSetting {
			if err := checkHash(arg); err != nil {
				return err
			}
		} else if _, err := positiveID(string(req.Kind), arg); err != nil {
			return err
		}
		req.IDs = append(req.IDs, arg)
	}
	resp, err := a.client().Act(cmd.Context(), req)
	if err != nil {
		return err
	}
	if a.json {
		return writeJSON(a.stdout, resp)
	}
	a.message("%s: %s", o.action, resp.Text())
	return nil
}

// checkHash accepts a setting's hash or the beginning of one.
func checkHash(s string) error {
	if len(s) < 4 || len(s) > 64 || strings.Trim(s, "0123456789abcdef") != "" {
		return &failure{status: exitUsage, message: fmt.Sprintf("%q is not a setting's hash", s), hint: "give at least its first 4 hex digits"}
	}
	return nil
}
