package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/result"
	"sbench/internal/seal"
	"sbench/internal/store"
)

// maxLog is how much of a log one request returns, from its end.
const maxLog = 64 << 20

// log copies a log of a run's latest attempt. With follow=1 it goes on until
// the run has ended.
func (s *server) log(w http.ResponseWriter, r *http.Request, who auth.Identity) error {
	id, err := pathID(r, "run")
	if err != nil {
		return err
	}
	run, err := s.Store.Run(r.Context(), id)
	if err != nil {
		return err
	}
	may, err := s.mayAct(r.Context(), who, run.UserName, run.Site, run.Account)
	if err != nil {
		return err
	}
	if !may {
		return &api.Problem{Code: api.CodeRefused, Message: fmt.Sprintf("run %d is %s's: its logs are not shown to %s", id, run.UserName, who.User)}
	}
	if err := s.looked(r, who, run.UserName); err != nil {
		return err
	}
	kind := api.LogKind(r.URL.Query().Get("kind"))
	if kind != api.LogEngine && kind != api.LogRunner && kind != api.LogSlurm {
		return &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("unknown kind of log %q", kind)}
	}
	follow := r.URL.Query().Get("follow") == "1"
	f, err := s.openLog(r.Context(), id, kind)
	for follow && errors.Is(err, os.ErrNotExist) && !run.State.Terminal() {
		if err := pause(r.Context(), s.Poll); err != nil {
			return err
		}
		if run, err = s.Store.Run(r.Context(), id); err != nil {
			return err
		}
		f, err = s.openLog(r.Context(), id, kind)
	}
	if errors.Is(err, os.ErrNotExist) {
		return &api.Problem{Code: api.CodeNotFound, Message: fmt.Sprintf("run %d, which is %s, has no %s log", id, run.State, kind)}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxLog {
		if _, err := f.Seek(-maxLog, io.SeekEnd); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	s.copyLog(w, r.Context(), f, run, follow)
	return nil
}

// copyLog writes the log as far as it goes. What fails after the first byte can
// only be logged: the caller sees the answer end.
func (s *server) copyLog(w http.ResponseWriter, ctx context.Context, f *os.File, run store.Run, follow bool) {
	flush := http.NewResponseController(w)
	for {
		// The state first: what was written before the run ended is then copied.
		ended := run.State.Terminal() || !run.State.Active()
		if _, err := io.Copy(w, f); err != nil {
			s.Log.InfoContext(ctx, "log cut off", "run", run.ID, "error", err)
			return
		}
		if !follow || ended {
			return
		}
		if err := flush.Flush(); err != nil {
			return
		}
		if err := pause(ctx, s.Poll); err != nil {
			return
		}
		next, err := s.Store.Run(ctx, run.ID)
		if err != nil {
			s.Log.InfoContext(ctx, "log cut off", "run", run.ID, "error", err)
			return
		}
		run = next
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// openLog opens a log of the latest attempt, sealed or not; os.ErrNotExist where
// there is none yet.
func (s *server) openLog(ctx context.Context, run int64, kind api.LogKind) (*os.File, error) {
	places, err := s.Store.Places(ctx, run)
	if err != nil {
		return nil, err
	}
	attempts, err := s.Store.AttemptViews(ctx, run)
	if err != nil {
		return nil, err
	}
	if kind == api.LogSlurm {
		if len(places) == 0 {
			return nil, os.ErrNotExist
		}
		return openSlurmLog(places[0])
	}
	name := map[api.LogKind]string{api.LogEngine: result.EngineLog, api.LogRunner: result.RunnerLog}[kind]
	if len(places) == 0 {
		return nil, os.ErrNotExist
	}
	p := places[0]
	var dirs []string
	// What runs now comes before what has ended.
	if p.JobIDRaw != nil && p.RestartCount != nil {
		dir := seal.Dir(p.AttemptsDir, run, *p.JobIDRaw, *p.RestartCount)
		dirs = append(dirs, dir)
		partials := seal.Partials(dir)
		slices.Reverse(partials) // newest first
		dirs = append(dirs, partials...)
	}
	for _, a := range slices.Backward(attempts) {
		if a.Dir != "" {
			dirs = append(dirs, a.Dir)
		}
	}
	for _, dir := range dirs {
		rel, err := filepath.Rel(p.AttemptsDir, filepath.Join(dir, name))
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		f, err := openPlain(p.AttemptsDir, rel)
		if !errors.Is(err, os.ErrNotExist) {
			return f, err
		}
	}
	return nil, os.ErrNotExist
}

// openSlurmLog opens what the batch script of the run's task wrote last.
func openSlurmLog(p store.Place) (*os.File, error) {
	if p.ArrayJobID == nil {
		return nil, os.ErrNotExist
	}
	return openPlain(p.BatchDir, fmt.Sprintf("logs/slurm-%d_%d.log", *p.ArrayJobID, p.TaskIndex))
}

// openPlain opens a regular file below dir. What lies there belongs to the jobs'
// users: a link that leads out, a pipe or a device in the place of a log must
// not make the daemon read something else, or hang.
func openPlain(dir, name string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &api.Problem{Code: api.CodeRefused, Message: fmt.Sprintf("log %s is no plain file: it is not read", filepath.Base(name))}
	}
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}
