package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"sbench/internal/collect"
	"sbench/internal/site"
	"sbench/internal/slurm"
	"sbench/internal/store"
	"sbench/internal/submit"
)

// services are the parts that only the acting daemon runs, on a store that
// refuses writes once another daemon acts.
func services(c Config, sites []*site.Site, s *store.Store, log *slog.Logger) ([]service, error) {
	wake := make([]chan struct{}, 0, len(sites))
	var list []service
	for _, st := range sites {
		cluster := slurm.New(slurm.Config{BinDir: st.Slurm.Bin, Conf: st.Slurm.Conf, Timeout: st.Slurm.Timeout})
		look := make(chan struct{}, 1)
		wake = append(wake, look)
		submitter, err := submit.New(submit.Config{
			Site: st, Store: s, Cluster: cluster, Log: log, Wake: look,
			Runner: cmp.Or(st.Paths.Runner, c.Runner), GPUHelper: cmp.Or(st.Paths.GPUHelper, c.GPUHelper),
		})
		if err != nil {
			return nil, fmt.Errorf("site %s: %w", st.Name, err)
		}
		list = append(list, service{"submit " + st.Name, submitter.Run})
	}
	list = append(list, service{"listen", func(ctx context.Context) error { return listenForRuns(ctx, s, wake, log) }})
	collector := collect.New(s, log.With("service", "collect"), collect.DefaultOptions())
	return append(list, service{"collect", func(ctx context.Context) error { return collector.Run(ctx) }}), nil
}

// listenForRuns wakes the submitters when runs may have become plannable. Without
// it they look every few seconds all the same, so a lost connection is only
// noted.
func listenForRuns(ctx context.Context, s *store.Store, wake []chan struct{}, log *slog.Logger) error {
	for {
		err := s.Listen(ctx, func(entity string) {
			if entity != "" && entity != "run" {
				return
			}
			for _, c := range wake {
				select {
				case c <- struct{}{}:
				default: // it is awake already
				}
			}
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		log.WarnContext(ctx, "not listening to the database; trying again", "error", err)
		sleep(ctx, restWait)
	}
}
