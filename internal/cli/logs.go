package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"sbench/internal/api"
)

type logsOptions struct {
	engine, runner, slurm, follow bool
}

func newLogsCommand(a *app) *cobra.Command {
	o := &logsOptions{}
	cmd := &cobra.Command{
		Use:   "logs RUN",
		Short: "print the logs of a run's latest attempt",
		Long: `Prints the runner's log, which says step by step what was verified, started and
measured; --engine prints what the inference server wrote, --slurm what the batch
script wrote.`,
		Example: "sbench logs 4711\nsbench logs 4711 --engine -f",
		Args:    nArgs(1, 1, "RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := positiveID("run", args[0])
			if err != nil {
				return err
			}
			kind, err := o.kind()
			if err != nil {
				return err
			}
			err = a.client().Log(cmd.Context(), a.stdout, id, kind, o.follow)
			if o.follow && errors.Is(err, context.Canceled) {
				return nil // Ctrl-C is how one stops following
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.engine, "engine", false, "the inference server's output")
	f.BoolVar(&o.runner, "runner", false, "the runner's log (the default)")
	f.BoolVar(&o.slurm, "slurm", false, "the batch script's output")
	f.BoolVarP(&o.follow, "follow", "f", false, "go on as the log grows, until the run has ended")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused, exitUnreachable)
	return cmd
}

func (o *logsOptions) kind() (api.LogKind, error) {
	chosen := []api.LogKind{}
	for _, k := range []struct {
		on   bool
		kind api.LogKind
	}{{o.engine, api.LogEngine}, {o.runner, api.LogRunner}, {o.slurm, api.LogSlurm}} {
		if k.on {
			chosen = append(chosen, k.kind)
		}
	}
	switch len(chosen) {
	case 0:
		return api.LogRunner, nil
	case 1:
		return chosen[0], nil
	}
	return "", usagef("--engine, --runner and --slurm: give one of them")
}
