package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/collect"
	"sbench/internal/cron"
	"sbench/internal/judge"
	"sbench/internal/lifecycle"
	"sbench/internal/notify"
	"sbench/internal/site"
	"sbench/internal/slurm"
	"sbench/internal/store"
	"sbench/internal/submit"
	"sbench/internal/track"
	"sbench/internal/web"
)

// services are the parts that only the acting daemon runs, on a store that
// refuses writes once another daemon acts.
func services(c Config, sites []*site.Site, clusters map[string]*slurm.Client, s *store.Store, door admitter, log *slog.Logger) ([]service, error) {
	var wake []chan struct{}
	look := func() <-chan struct{} {
		c := make(chan struct{}, 1)
		wake = append(wake, c)
		return c
	}
	die := failpoint(log)
	options := collect.DefaultOptions()
	options.Failpoint = die
	collector := collect.New(s, log.With("service", "collect"), options)
	list := []service{{"collect", collector.Run}, {"files", keeper(s, sites, log, die).Run}}
	for _, st := range sites {
		cluster := clusters[st.Name]
		submitter, err := submit.New(submit.Config{
			Site: st, Store: s, Cluster: cluster, Log: log, Wake: look(), Failpoint: die,
			Released: func(took time.Duration) { door.released(st.Name, took) },
			Runner:   cmp.Or(st.Paths.Runner, c.Runner), GPUHelper: cmp.Or(st.Paths.GPUHelper, c.GPUHelper),
		})
		if err != nil {
			return nil, fmt.Errorf("site %s: %w", st.Name, err)
		}
		tracker := track.New(track.Config{
			Site: st, Store: s, Cluster: cluster, Log: log, Failpoint: die, Collected: collector.Looked,
		})
		list = append(list, service{"submit " + st.Name, submitter.Run}, service{"track " + st.Name, tracker.Run})
	}
	crons := cron.New(cron.Config{Store: s, Identify: door.peers.Of, Admit: door.admit, Log: log})
	mails := notify.New(notify.Config{Store: s, Send: c.Mail.sender(), From: c.Mail.From, Domain: c.Mail.Domain, Log: log, Failpoint: die})
	list = append(list, service{"mail", mails.Run})
	judges := judge.New(judge.Config{Store: s, Identify: door.peers.Of, Confirm: door.confirm, Log: log, Failpoint: die})
	list = append(list, service{"judge", judges.Run})
	return append(list, service{"listen", func(ctx context.Context) error { return listenForRuns(ctx, s, wake, log) }}, service{"cron", crons.Run}), nil
}

// admitter is how the services submit in somebody's name, and what they tell the API.
type admitter struct {
	peers *auth.Peers
	admit func(ctx context.Context, who auth.Identity, req api.SubmitRequest) (api.SubmitResponse, error)
	// released is told how long a batch of a site took to get into the queue.
	released func(site string, took time.Duration)
	// confirm runs settings of a sweep again.
	confirm func(ctx context.Context, who auth.Identity, of int64, list []store.Again, key string) (int64, error)
}

// clients are how the sites' Slurms are called. They live as long as the process,
// so that their counts grow over elections.
func clients(sites []*site.Site) map[string]*slurm.Client {
	all := map[string]*slurm.Client{}
	for _, st := range sites {
		all[st.Name] = slurm.New(slurm.Config{BinDir: st.Slurm.Bin, Conf: st.Slurm.Conf, Timeout: st.Slurm.Timeout})
	}
	return all
}

// calls lists what the clients have called, in a fixed order.
func calls(clusters map[string]*slurm.Client) []web.SlurmCalls {
	var list []web.SlurmCalls
	for _, name := range slices.Sorted(maps.Keys(clusters)) {
		stats := clusters[name].Stats()
		for _, command := range slices.Sorted(maps.Keys(stats)) {
			c := stats[command]
			list = append(list, web.SlurmCalls{
				Site: name, Command: command, Calls: c.Calls, Failures: c.Failures, Timeouts: c.Timeouts, Seconds: c.Total.Seconds(),
			})
		}
	}
	return list
}

// keeper looks after the files of ended attempts.
func keeper(s *store.Store, sites []*site.Site, log *slog.Logger, die func(string)) *collect.Keeper {
	return &collect.Keeper{Store: s, Sites: sites, Log: log.With("service", "files"), Now: time.Now, Failpoint: die}
}

// removeFiles answers the API's request. It is not fenced: removing what is
// removed already does nothing.
func removeFiles(s *store.Store, sites []*site.Site, log *slog.Logger) func(context.Context, *site.Site, bool) (api.RemovedFiles, error) {
	k := keeper(s, sites, log, nil)
	return func(ctx context.Context, st *site.Site, dry bool) (api.RemovedFiles, error) {
		r, err := k.Remove(ctx, st, dry)
		out := api.RemovedFiles{DryRun: dry, Attempts: make([]api.RemovedAttempt, len(r.Attempts)), Files: r.Files, Bytes: r.Bytes}
		for i, a := range r.Attempts {
			out.Attempts[i] = api.RemovedAttempt{RunID: a.RunID, Folder: a.Folder, ExitClass: a.ExitClass, Reason: a.Reason, Files: a.Files, Bytes: a.Bytes}
		}
		return out, err
	}
}

// failpointEnv names a step at which the daemon kills itself: the fault tests
// show that nothing is lost there.
const failpointEnv = "SBENCH_FAILPOINT"

func failpoint(log *slog.Logger) func(string) {
	want := os.Getenv(failpointEnv)
	if want == "" {
		return nil
	}
	return func(name string) {
		if name == want {
			log.Error("ending at a failpoint", "name", name)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
}

// listenForRuns wakes the services when there may be something to do. Without
// it they look every few seconds all the same, so a lost connection is only
// noted.
func listenForRuns(ctx context.Context, s *store.Store, wake []chan struct{}, log *slog.Logger) error {
	for {
		err := s.Listen(ctx, func(entity string) {
			if entity != "" && entity != string(lifecycle.EntityRun) && entity != string(lifecycle.EntityBatch) {
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
