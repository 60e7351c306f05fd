// Package submit feeds one site: it plans pending runs, commits each batch with
// its token before sbatch is called, freezes its folder, submits it held, records
// its job id and releases it.
//
// It promises that a daemon that is killed anywhere loses no run and submits no
// batch twice that can be found: after an outcome that is not known, Slurm is
// searched for the token, and only when it has had time to answer and knows
// nothing is the batch submitted again. What Slurm creates even later stays held
// and measures nothing, because the task's claim is another job's. It refuses to
// press against limits: what does not fit in the queue waits in the database.
package submit

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"sbench/internal/jobscript"
	"sbench/internal/lifecycle"
	"sbench/internal/site"
	"sbench/internal/slurm"
	"sbench/internal/store"
)

// cluster is what submission needs of Slurm.
type cluster interface {
	Submit(ctx context.Context, script string, hold bool) (slurm.Submission, error)
	Find(ctx context.Context, name, token string, since time.Time) (slurm.Presence, []slurm.Found, error)
	Release(ctx context.Context, job int64) error
	Cancel(ctx context.Context, ids ...string) error
	Settings(ctx context.Context) (slurm.Settings, error)
	Limits(ctx context.Context, user, account, qos string) (slurm.Limits, error)
	Shares(ctx context.Context) (map[string]float64, error)
	Wall(ctx context.Context, user, account, partitions, qos string) (slurm.Wall, error)
	UpdateThrottle(ctx context.Context, array int64, most int) error
}

// Config is what a Service works with.
type Config struct {
	Site    *site.Site
	Store   *store.Store
	Cluster cluster
	// Runner and GPUHelper are the programs that are installed in the spool;
	// GPUHelper "" is none. Those for ARM nodes are taken from the same names with
	// -arm64 behind them, where those files are.
	Runner, GPUHelper string
	// Templates is a folder of batch script templates that take the place of the
	// built-in ones; "" is none.
	Templates string
	Log       *slog.Logger
	// Interval is how long nothing is looked at; 0 is DefaultInterval.
	Interval time.Duration
	// Wake makes the service look at once; nil never does.
	Wake <-chan struct{}
	// Settle is how long an outcome that is not known is left alone before Slurm's
	// not knowing the token is believed; 0 is its MessageTimeout and 20 s.
	Settle time.Duration
	Now    func() time.Time // nil is time.Now
	// Released is told how long a batch took from its commit until Slurm may start
	// it; nil is not.
	Released func(took time.Duration)
	// Failpoint is called at the steps between which a daemon may be killed; nil
	// does nothing. Tests end the process there.
	Failpoint func(name string)
}

// DefaultInterval is Config.Interval's default.
const DefaultInterval = 5 * time.Second

// The failpoints, in the order in which a batch passes them.
const (
	FailFrozen    = "submit-1-frozen"    // the folder is there, the row is not
	FailCommitted = "submit-2-committed" // the row is there, sbatch was not called
	FailTrying    = "submit-3-trying"    // the call is noted, sbatch was not called
	FailSubmitted = "submit-4-submitted" // Slurm has the job, its id is not recorded
	FailHeld      = "submit-5-held"      // the id is recorded, the job is held
	FailReleased  = "submit-6-released"  // the job is released, which is not recorded
)

// Service submits for one site.
type Service struct {
	Config
	templates *jobscript.Templates
	user      string
	programs  string // folder in the spool
	stamp     string // of the programs in it
	limits    limits
	// What is only a matter of manners, and may be forgotten with the process.
	refusals map[string]int       // by token: how often Slurm refused it
	nothing  map[string]bool      // tokens whose every submission Slurm has refused
	fresh    map[string]bool      // tokens whose job this process has submitted itself
	notUntil map[string]time.Time // by token: when to try again
	full     time.Time            // Slurm takes nothing more of anybody before
	fullOf   map[owner]time.Time  // or of an account and QOS
	served   map[string]bool      // checkpoints that an engine has served here
	most     int                  // tasks of an array, where Slurm refused more; 0 is no limit
	mostFor  time.Time            // until when that is believed
	slow     map[string]time.Time // by token: when to try again to change its limit of tasks at once
	tidied   time.Time            // when the spool was last looked through
}

// New checks the configuration and loads the templates.
func New(c Config) (*Service, error) {
	c.Interval = cmp.Or(c.Interval, DefaultInterval)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Failpoint == nil {
		c.Failpoint = func(string) {}
	}
	if c.Released == nil {
		c.Released = func(time.Duration) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("service", "submit", "site", c.Site.Name)
	templates, err := jobscript.Load(c.Templates)
	if err != nil {
		return nil, err
	}
	s := &Service{
		Config: c, templates: templates, user: RunsAs(),
		refusals: map[string]int{}, fresh: map[string]bool{}, notUntil: map[string]time.Time{},
		served: map[string]bool{}, nothing: map[string]bool{}, fullOf: map[owner]time.Time{}, slow: map[string]time.Time{},
	}
	return s, nil
}

// RunsAs is the name of the user whose jobs these are: who runs the process. It
// is the number where the user has no name.
func RunsAs() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// Run submits until ctx ends. It returns an error only where going on would be
// wrong: another daemon acts.
func (s *Service) Run(ctx context.Context) error {
	return store.UntilFenced(ctx, s.Interval, s.Wake, s.Turn, func(err error) {
		s.Log.WarnContext(ctx, "submission is incomplete", "error", err)
	})
}

// Turn does once what there is to do: bring open batches on, then submit new ones
// as far as there is room. Errors of one batch do not keep others back. A site
// that is paused in the middle of it gets nothing more.
func (s *Service) Turn(ctx context.Context) error {
	mode, err := s.mode(ctx)
	if err != nil {
		return err
	}
	open, err := s.Store.OpenBatches(ctx, s.Site.Name)
	if err != nil {
		return err
	}
	if mode == store.SitePaused {
		return s.dropCancelled(ctx, open)
	}
	if err := s.install(); err != nil {
		return err
	}
	if err := s.depend(ctx); err != nil {
		return err
	}
	var errs []error
	for _, b := range open {
		if b.State != lifecycle.BatchReleased {
			if mode, err = s.mode(ctx); err != nil || mode == store.SitePaused {
				return errors.Join(append(errs, err)...)
			}
		}
		if err := s.advance(ctx, b); err != nil {
			errs = append(errs, fmt.Errorf("batch %s: %w", b.Token, err))
		}
		if err := stop(ctx, errs); err != nil {
			return err
		}
	}
	if err := s.throttle(ctx); err != nil {
		errs = append(errs, err)
		if err := stop(ctx, errs); err != nil {
			return err
		}
	}
	if mode == store.SiteActive {
		if err := s.feed(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, s.tidy(ctx))...)
}

// mode is what an operator allows the site now.
func (s *Service) mode(ctx context.Context) (string, error) {
	modes, err := s.Store.SiteModes(ctx)
	if err != nil {
		return "", err
	}
	return cmp.Or(modes[s.Site.Name].Mode, store.SiteActive), nil
}

// dropCancelled lets users cancel what a paused site has not submitted.
func (s *Service) dropCancelled(ctx context.Context, open []store.Batch) error {
	var errs []error
	for _, b := range open {
		if b.State == lifecycle.BatchIntent && s.unsubmitted(b) {
			_, err := s.dropEmpty(ctx, b)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// stop returns the reason to end a turn early.
func stop(ctx context.Context, errs []error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if n := len(errs); n > 0 && errors.Is(errs[n-1], store.ErrFenced) {
		return errs[n-1]
	}
	return nil
}

// install puts the programs into the spool, unless they are there.
func (s *Service) install() error {
	programs := []Program{{Name: "sbench-runner", Path: s.Runner}}
	if arm := s.Runner + "-arm64"; isFile(arm) {
		programs = append(programs, Program{Name: "sbench-runner-arm64", Path: arm})
	}
	if s.GPUHelper != "" {
		programs = append(programs, Program{Name: gpuHelper, Path: s.GPUHelper})
		if arm := s.GPUHelper + "-arm64"; isFile(arm) {
			programs = append(programs, Program{Name: gpuHelper + "-arm64", Path: arm})
		}
	}
	if s.programs != "" && stamp(s.programs, programs) == s.stamp {
		return nil
	}
	dir, err := Install(s.Site.Paths.Spool, programs)
	if err != nil {
		return err
	}
	s.programs, s.stamp = dir, stamp(dir, programs)
	return nil
}

const gpuHelper = "sbench-gpu"

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// helper is the GPU helper's path in the spool; "" where there is none.
func (s *Service) helper() string {
	if s.GPUHelper == "" {
		return ""
	}
	return filepath.Join(s.programs, gpuHelper)
}

// random fills a token's bytes.
func random(b []byte) {
	// crypto/rand.Read never fails.
	_, _ = rand.Read(b)
}
