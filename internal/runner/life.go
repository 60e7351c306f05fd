package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"sbench/internal/batch"
	"sbench/internal/canon"
	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/proc"
	"sbench/internal/result"
	"sbench/internal/runner/engine"
	"sbench/internal/setting"
	"sbench/internal/spool"
)

// life is a server that has served a run and may serve another one: of a setting
// that differs in its workload alone, and says server_life: shared.
type life struct {
	key        string
	supervisor *proc.Supervisor
	dirs       dirs
	clocks     *lockedClocks
	engine     *running
	artefacts  artefacts
	container  fingerprint.Container
	software   fingerprint.Engine
	env        map[string]string
}

// The states of the prefix cache when a measurement begins.
const (
	cacheReset = "reset"
	cacheFresh = "fresh"
)

// lifeKey is equal for settings that one server may serve: everything but the
// workload is equal. It is "" where every run has a server of its own.
func lifeKey(s setting.Setting) string {
	if s.Engine.ServerLife != setting.ServerLifeShared || s.Hardware.Nodes > 1 {
		return ""
	}
	s.Workload = setting.Default().Workload
	return canon.Hash(s.Canonical()) + " " + s.Image.Path + " " + s.Model.Checkpoint.Path
}

// share groups the runs of a task that are still to do by the server that may
// serve them, in the order of each group's first.
func share(spec *batch.Spec, todo []batch.Run) [][]batch.Run {
	var groups [][]batch.Run
	place := map[string]int{}
	for _, r := range todo {
		key := lifeKey(spec.Settings[r.SettingHash])
		if i, known := place[key]; known && key != "" {
			groups[i] = append(groups[i], r)
			continue
		}
		place[key] = len(groups)
		groups = append(groups, []batch.Run{r})
	}
	return groups
}

// takeOver makes the server of the run before this one's, before anything is done.
func (a *attempt) takeOver() {
	l := a.shared
	a.supervisor, a.dirs, a.clocks, a.engine = l.supervisor, l.dirs, l.clocks, l.engine
}

// keep leaves the server to the next run. It returns nil where there is nothing to
// keep, and the server has to end with this run.
func (a *attempt) keep() *life {
	// A server that was asked for answers ends: no measurement comes after an
	// evaluation on the same server.
	if a.evaluated != nil || !a.more || a.engine == nil || a.gang != nil || lifeKey(a.setting) == "" || a.engineEnded(false) {
		return nil
	}
	l := &life{
		key: lifeKey(a.setting), supervisor: a.supervisor, dirs: a.dirs, clocks: a.clocks, engine: a.engine, artefacts: a.artefacts,
		container: a.fingerprint.Container, software: a.fingerprint.Engine, env: a.fingerprint.Nodes[0].Env,
	}
	l.artefacts.inputs.Trace, l.artefacts.inputs.Prompts = nil, nil
	a.copyLog()
	return l
}

// ownNode reads this node before the measurement. A server that serves already is
// no neighbour, and the client has bound itself to some of the step's CPUs.
func (a *attempt) ownNode(ctx context.Context) (fingerprint.Node, error) {
	node := a.readNode(ctx)
	if a.cpus != nil {
		node.CPUsAllowed = a.cpus
	}
	if a.shared == nil {
		return node, nil
	}
	pids, err := a.engine.tree.PIDs()
	if err != nil {
		return node, fail(lifecycle.ExitInternal, "", err)
	}
	withoutProcesses([]fingerprint.Node{node}, pids)
	return node, nil
}

// reuse goes on with the server of the run before, or says why it cannot. What
// cannot be emptied of what the run before left in it is ended, and a new server
// started: warm runs are not passed off as cold ones.
func (a *attempt) reuse(ctx context.Context) (reused bool) {
	if a.shared == nil {
		return false
	}
	why := ""
	switch old := a.shared.artefacts; {
	case a.engineEnded(false):
		why = "the server of the run before had ended"
	case errors.Join(old.checkpoint.Unchanged(), old.program.Unchanged()) != nil || a.setting.Image.Kind == setting.ImageSIF && old.image.Unchanged() != nil,
		old.checkpoint.Digest != a.artefacts.checkpoint.Digest:
		why = "its image or checkpoint was touched since it was started"
	default:
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		route, err := engine.ResetCache(ctx, a.engine.adapter, a.engine.ready.BaseURL)
		if err == nil {
			served := a.shared.software.Life.Position + 1
			a.fingerprint.Container, a.fingerprint.Engine, a.fingerprint.Nodes[0].Env = a.shared.container, a.shared.software, a.shared.env
			a.fingerprint.Engine.Life = fingerprint.Life{
				Kind: string(setting.ServerLifeShared), Position: served, Started: a.shared.software.Life.Started, Cache: cacheReset, CacheRoute: route,
			}
			a.log.Info("the server goes on", "position", served, "cache", route)
			return true
		}
		why = err.Error()
	}
	a.log.Info("a new server is started", "why", why)
	if err := a.endEngine(); err != nil {
		a.log.Error("end the server of the run before", "error", err)
	}
	_ = os.Remove(a.logPath())
	return false
}

// endEngine ends this node's engine, and what it left in shared memory.
func (a *attempt) endEngine() error {
	a.noteSharedMemory()
	err := a.engine.tree.Stop(a.stopGrace())
	removed, shmErr := removeSharedMemory(a.engine.shm)
	if len(removed) > 0 {
		a.log.Info("removed the engine's shared memory", "files", removed)
	}
	a.engine = nil
	return errors.Join(err, shmErr)
}

// settleCache brings the prefix cache of a new server into a known state, and
// records which.
func (a *attempt) settleCache(ctx context.Context) error {
	l := &a.fingerprint.Engine.Life
	if l.Cache != "" {
		return nil // a server that goes on
	}
	*l = fingerprint.Life{Kind: string(setting.ServerLifeRun), Started: time.Now().UTC().Format(time.RFC3339Nano), Cache: cacheFresh}
	if a.setting.Engine.ServerLife == setting.ServerLifeShared {
		l.Kind = string(setting.ServerLifeShared)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	route, err := engine.ResetCache(ctx, a.engine.adapter, a.engine.ready.BaseURL)
	if err != nil {
		// The server has served the readiness prompt, which no measurement uses.
		l.CacheWhy = err.Error()
		return nil
	}
	l.Cache, l.CacheRoute = cacheReset, route
	return nil
}

// copyLog puts the end of a shared server's log into the attempt: the server goes
// on writing into its own.
func (a *attempt) copyLog() {
	if a.writer == nil || a.logPath() == a.writer.Path(result.EngineLog) {
		return
	}
	from, err := os.Open(a.logPath())
	if err != nil {
		return // it was never started
	}
	defer from.Close()
	if info, err := from.Stat(); err == nil && info.Size() > maxRankLog {
		_, _ = from.Seek(-maxRankLog, io.SeekEnd)
	}
	to, err := os.Create(a.writer.Path(result.EngineLog))
	if err == nil {
		_, err = io.Copy(to, io.LimitReader(from, maxRankLog))
		err = errors.Join(err, to.Close())
	}
	if err != nil {
		a.log.Warn("copy the server's log", "error", err)
	}
}

// abandonServer ends the server of the run before where this one cannot even begin.
func (a *attempt) abandonServer(stderr io.Writer) {
	if a.shared == nil {
		return
	}
	a.takeOver()
	a.log = slog.New(slog.NewTextHandler(stderr, nil)).With("run", a.run.ID)
	if err := a.tearDown(); err != nil {
		a.log.Error("tear-down", "error", err)
	}
}

// turn is what the job's script tells about the task, for a process that executes
// several of its runs.
type turn struct {
	record   string    // where the task writes what it does; "" is nowhere
	deadline time.Time // after which no run may end; zero is none
}

func turnFromEnv(getenv func(string) string) turn {
	t := turn{record: getenv("SBENCH_RECORD")}
	if s, err := strconv.ParseInt(getenv("SBENCH_DEADLINE"), 10, 64); err == nil && s > 0 {
		t.deadline = time.Unix(s, 0)
	}
	return t
}

// skip says why a further run is not started; "" where it is.
func (t turn) skip(ctx context.Context, p place, j job, r batch.Run) string {
	switch {
	case ctx.Err() != nil:
		return "stopped"
	case exists(filepath.Join(p.batch, batch.CancelDir, strconv.FormatInt(r.ID, 10))):
		return "cancelled"
	case !t.deadline.IsZero() && time.Now().Add(r.TimeLimit).After(t.deadline):
		return "time"
	}
	// The daemon must know of the start, or have given the run up here.
	closed, err := spool.Start(p.batch, r.ID, j.start(""))
	switch {
	case err != nil:
		return "unknown"
	case closed != "":
		return "closed"
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// note adds a line to the task's record, as task.sh does.
func (t turn) note(format string, args ...any) {
	if t.record == "" {
		return
	}
	f, err := os.OpenFile(t.record, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return // a full disk must not stop a measurement
	}
	defer f.Close()
	_, _ = f.WriteString(strconv.FormatInt(time.Now().Unix(), 10) + " " + fmt.Sprintf(format, args...) + "\n")
}
