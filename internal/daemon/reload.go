package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/site"
	"sbench/internal/slurm"
	"sbench/internal/store"
	"sbench/internal/web"
)

// inForce is what a reading of the site files made.
type inForce struct {
	sites    []*site.Site
	clusters map[string]*slurm.Client
	handler  *web.Server
}

// reloader puts site files in force: at the start, and again at each SIGHUP. What
// is wrong with a file then keeps the old ones.
type reloader struct {
	config Config
	log    *slog.Logger
	store  *store.Store
	lead   *leader
	// handler makes the API's handler for sites; peers are who callers are.
	handler func(sites []*site.Site, clusters map[string]*slurm.Client) (*web.Server, error)
	peers   *auth.Peers
	now     atomic.Pointer[inForce]
	note    atomic.Pointer[string]
}

// use puts sites in force, unless something in them is refused.
func (r *reloader) use(sites []*site.Site) error {
	next := &inForce{sites: sites, clusters: clients(sites)}
	if old := r.now.Load(); old != nil {
		for _, was := range old.sites {
			i := slices.IndexFunc(sites, func(s *site.Site) bool { return s.Name == was.Name })
			if i < 0 {
				return fmt.Errorf("site %s is gone: its sweeps would never end; restart the daemon if that is meant", was.Name)
			}
			if sites[i].Slurm == was.Slurm {
				next.clusters[was.Name] = old.clusters[was.Name] // with its counts
			}
		}
	}
	var err error
	if next.handler, err = r.handler(sites, next.clusters); err != nil {
		return err
	}
	// What the services refuse is better known now than at an election.
	if _, err := r.servicesOf(next, r.store); err != nil {
		return err
	}
	r.now.Store(next)
	return nil
}

func (r *reloader) servicesOf(f *inForce, s *store.Store) ([]service, error) {
	return services(r.config, f.sites, f.clusters, s, admitter{r.peers, r.admit, r.released, r.confirm}, r.log)
}

// services are those of the sites that are in force.
func (r *reloader) services(s *store.Store) ([]service, error) { return r.servicesOf(r.now.Load(), s) }

func (r *reloader) admit(ctx context.Context, who auth.Identity, req api.SubmitRequest) (api.SubmitResponse, error) {
	return r.now.Load().handler.Admit(ctx, who, req)
}

// confirm runs settings of a sweep again by the site files in force.
func (r *reloader) confirm(ctx context.Context, who auth.Identity, of int64, list []store.Again, key string) (int64, error) {
	return r.now.Load().handler.Confirm(ctx, who, of, list, key)
}

func (r *reloader) released(site string, took time.Duration) {
	r.now.Load().handler.ObserveSubmit(site, took)
}

// ServeHTTP answers by the sites that are in force as the request comes.
func (r *reloader) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.now.Load().handler.ServeHTTP(w, req)
}

// state is what /readyz says of the last reload; "" before the first.
func (r *reloader) state() string {
	if note := r.note.Load(); note != nil {
		return *note
	}
	return ""
}

// run reloads at each SIGHUP until ctx ends.
func (r *reloader) run(ctx context.Context, hangup <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangup:
		}
		at := time.Now().UTC().Format(time.RFC3339)
		err := r.reload()
		note := "site files: reloaded at " + at
		if err != nil {
			note = "site files: a reload was refused at " + at + ", the earlier ones stay in force; the log says why"
			// One line of the log for each fault: each names its file and line.
			for line := range strings.Lines(err.Error()) {
				if line = strings.TrimRight(line, "\n"); line != "" {
					r.log.ErrorContext(ctx, "site files not reloaded", "error", line)
				}
			}
		} else {
			r.log.InfoContext(ctx, "site files reloaded", "sites", len(r.now.Load().sites))
			r.lead.restart()
		}
		r.note.Store(&note)
	}
}

func (r *reloader) reload() error {
	sites, err := loadSites(r.config.Sites)
	if err != nil {
		return err
	}
	return r.use(sites)
}

// onHangup is notified of each SIGHUP until stop is called.
func onHangup() (hangup chan os.Signal, stop func()) {
	hangup = make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	return hangup, func() { signal.Stop(hangup) }
}

// errReloaded ends a term whose services know old site files.
var errReloaded = errors.New("the site files were reloaded")

// restart lets the services begin again, where this daemon acts.
func (l *leader) restart() {
	select {
	case l.again <- struct{}{}:
	default: // it is asked for already
	}
}
