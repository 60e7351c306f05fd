package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/runner/engine"
	"sbench/internal/runner/gang"
	"sbench/internal/runner/gpu"
	"sbench/internal/runner/port"
)

// gangDir is where the ranks of an attempt find each other, in the batch's folder.
const gangDir = "gang"

func (a *attempt) meeting() string {
	return filepath.Join(a.place.batch, gangDir, fmt.Sprintf("%d.%d-r%d", a.run.ID, a.job.id, a.job.restart))
}

// What rank 0 asks of the others.
const (
	verbVerify   = "verify"   // hash and read the node: report
	verbStart    = "start"    // startOrder: start this rank's engine: report
	verbIdentify = "identify" // report
	verbClock    = "clock"    // CLOCK_MONOTONIC in nanoseconds
	verbSample   = "sample"   // begin to sample
	verbSampled  = "sampled"  // sampledOrder: end sampling: samples
	verbAgain    = "again"    // read the node again: report
	verbStop     = "stop"     // tear down: stopped
)

// What the others say unasked, with a told as body.
const (
	eventEngine = "engine" // it ended by itself
	eventSignal = "signal"
)

// told is a failure of another rank.
type told struct {
	Class     lifecycle.ExitClass `json:"class"`
	Reasons   []string            `json:"reasons"`
	Signature string              `json:"signature"`
}

type report struct {
	Node fingerprint.Node `json:"node"`
	Fail *told            `json:"fail"`
}

type startOrder struct {
	Gang  engine.Gang `json:"gang"`
	Spans bool        `json:"spans"` // false: the engine is rank 0's alone
}

// span is a load point: from and to on the attempt's clock.
type span struct {
	Start, End int64
}

type sampledOrder struct {
	Spans []span `json:"spans"`
	// Origin is the attempt's clock's zero on the asked node's CLOCK_MONOTONIC.
	Origin int64 `json:"origin"`
}

type samples struct {
	Telemetry []result.Telemetry `json:"telemetry"`
	Checks    []result.Check     `json:"checks"`
	Joules    []*float64         `json:"joules"` // by span; nil is not known
	Why       []string           `json:"why"`
	Fail      *told              `json:"fail"`
}

type stopped struct {
	Fault string `json:"fault"` // what could not be torn down
	Log   []byte `json:"log"`   // the end of the engine's
}

// maxRankLog bounds what another rank's engine log adds to the attempt.
const maxRankLog = 1 << 20

// conductor is what rank 0 knows of the gang.
type conductor struct {
	leader  *gang.Leader
	members []gang.Member
	quit    chan struct{}
	origins map[int]int64 // by rank: the attempt's clock's zero on theirs
}

// assemble waits for the runners of the other nodes. From then on, lose ends the
// run when one of them is lost or has something to say.
func (a *attempt) assemble(ctx context.Context, lose context.CancelCauseFunc) error {
	nodes := a.setting.Hardware.Nodes
	if nodes <= 1 {
		return nil
	}
	if a.job.size != nodes {
		return &failure{
			class: lifecycle.ExitDriftNode, signature: "drift hardware.nodes", blame: []string{},
			reasons: []string{fmt.Sprintf("ENV_DRIFT: hardware.nodes %d expected, %d realized: the step has %d tasks", nodes, a.job.size, a.job.size)},
		}
	}
	leader, err := gang.Lead(ctx, a.meeting(), a.job.node, nodes, gang.Timing{Meet: a.spec.Node.Deadlines.Gang})
	if err != nil {
		return fail(lifecycle.ExitInternal, "gang", err)
	}
	a.gang = &conductor{leader: leader, quit: make(chan struct{}), origins: map[int]int64{}}
	a.gang.members, err = leader.Await(ctx)
	a.manifest.Attempt.Nodes = []string{a.job.node}
	for _, m := range a.gang.members {
		a.manifest.Attempt.Nodes = append(a.manifest.Attempt.Nodes, m.Node)
	}
	if err != nil {
		return &failure{
			class: lifecycle.ExitDriftNode, signature: "gang lost", cause: err, blame: []string{}, outside: true,
			reasons: []string{fmt.Sprintf("GANG: %v", err)},
		}
	}
	a.log.Info("gang", "nodes", a.manifest.Attempt.Nodes)
	go a.gang.watch(lose)
	return nil
}

// watch ends the run at the first event.
func (c *conductor) watch(lose context.CancelCauseFunc) {
	select {
	case e := <-c.leader.Events():
		lose(eventFailure(e))
	case <-c.quit:
	}
}

func eventFailure(e gang.Event) *failure {
	f := &failure{class: lifecycle.ExitDriftNode, signature: "gang lost", cause: e.Err, blame: []string{e.Member.Node}, outside: true}
	var t told
	switch {
	case e.Err != nil:
		f.reasons = []string{fmt.Sprintf("GANG: rank %d on %s: %v", e.Member.Rank, e.Member.Node, e.Err)}
		return f
	case json.Unmarshal(e.Body, &t) != nil || !t.Class.Known() || len(t.Reasons) == 0:
		f.reasons = []string{fmt.Sprintf("GANG: rank %d on %s: an event %q that is not understood", e.Member.Rank, e.Member.Node, e.Name)}
		return f
	}
	return t.failure(e.Member)
}

// failure is another rank's failure as rank 0 tells it.
func (t told) failure(m gang.Member) *failure {
	f := &failure{class: t.Class, reasons: t.Reasons, signature: t.Signature, outside: true, blame: []string{m.Node}}
	f.reasons[0] = fmt.Sprintf("%s (rank %d on %s)", f.reasons[0], m.Rank, m.Node)
	return f
}

// otherRank is the failure of another rank that ended the step, if one did, and
// else the step's own.
func otherRank(ctx context.Context, step string, err error) error {
	var f *failure
	if !errors.As(context.Cause(ctx), &f) {
		return err
	}
	if f.class == lifecycle.ExitEngineDied && step == "start" {
		g := *f
		g.class = lifecycle.ExitEngineStart
		return &g
	}
	return f
}

// every asks every other rank at once; take gets each answer, one at a time.
func every[T any](ctx context.Context, c *conductor, verb string, in func(gang.Member) any, take func(gang.Member, T) error) error {
	if c == nil {
		return nil
	}
	answers := make([]T, len(c.members))
	group, ctx := errgroup.WithContext(ctx)
	for i, m := range c.members {
		group.Go(func() error {
			if err := c.leader.Call(ctx, m.Rank, verb, in(m), &answers[i]); err != nil {
				f := &failure{class: lifecycle.ExitDriftNode, signature: "gang lost", cause: err, blame: []string{m.Node}, outside: true}
				f.reasons = []string{"GANG: " + err.Error()}
				return f
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, m := range c.members {
		if err := take(m, answers[i]); err != nil {
			return err
		}
	}
	return nil
}

// alongside lets every other rank do what it is asked while this one does its own
// part, and returns the nodes that they report, by rank.
func (a *attempt) alongside(ctx context.Context, verb string, in any, own func(context.Context) error) ([]fingerprint.Node, error) {
	if a.gang == nil {
		return nil, own(ctx)
	}
	var nodes []fingerprint.Node
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return own(ctx) })
	group.Go(func() error {
		return every(ctx, a.gang, verb, func(gang.Member) any { return in }, func(m gang.Member, r report) error {
			if r.Fail != nil {
				return r.Fail.failure(m)
			}
			// Who it is was settled when it joined.
			r.Node.Rank, r.Node.Name = m.Rank, m.Node
			if r.Node.Software == nil {
				r.Node.Software = &fingerprint.Software{}
			}
			nodes = append(nodes, r.Node)
			return nil
		})
	})
	return nodes, group.Wait()
}

// startOthers starts the other ranks' engines, if they have any, and says where
// this rank's finds them.
func (a *attempt) startOthers(ctx context.Context, adapter engine.Engine) error {
	if a.gang == nil {
		return nil
	}
	spans, err := adapter.Spans(a.setting)
	if err != nil {
		return fail(lifecycle.ExitSpec, "gang", err)
	}
	order := startOrder{Gang: engine.Gang{Nodes: a.manifest.Attempt.Nodes, Leader: a.gang.members[0].Via}, Spans: spans}
	if order.Gang.Port, err = port.Free(""); err != nil {
		return fail(lifecycle.ExitInternal, "", err)
	}
	in := func(m gang.Member) any {
		own := order
		own.Gang.Rank = m.Rank
		return own
	}
	var nodes []fingerprint.Node
	err = every(ctx, a.gang, verbStart, in, func(m gang.Member, r report) error {
		if r.Fail != nil {
			return r.Fail.failure(m)
		}
		r.Node.Rank, r.Node.Name = m.Rank, m.Node
		nodes = append(nodes, r.Node)
		return nil
	})
	if err != nil {
		return err
	}
	a.fingerprint.Nodes = append(a.fingerprint.Nodes[:1:1], nodes...)
	if spans {
		a.order = &order.Gang
	}
	return nil
}

// sampleOthers lets the other ranks sample their devices.
func (a *attempt) sampleOthers(ctx context.Context) error {
	if a.gang == nil {
		return nil
	}
	for _, m := range a.gang.members {
		origin, err := a.clockOf(ctx, m)
		if err != nil {
			return err
		}
		a.gang.origins[m.Rank] = origin
	}
	return every(ctx, a.gang, verbSample, func(gang.Member) any { return nil }, func(gang.Member, struct{}) error { return nil })
}

// clockOf is the attempt's clock's zero on another node's monotonic clock: the
// clocks of two machines have nothing in common but their pace. It is as exact as
// half of the shortest of some round trips, far below the samples' period.
func (a *attempt) clockOf(ctx context.Context, m gang.Member) (int64, error) {
	var origin int64
	best := time.Duration(1<<63 - 1)
	for range 8 {
		var theirs int64
		before := a.clock.Now()
		if err := a.gang.leader.Call(ctx, m.Rank, verbClock, nil, &theirs); err != nil {
			return 0, &failure{
				class: lifecycle.ExitDriftNode, signature: "gang lost", cause: err, blame: []string{m.Node}, outside: true,
				reasons: []string{"GANG: " + err.Error()},
			}
		}
		after := a.clock.Now()
		if trip := time.Duration(after - before); trip < best {
			best, origin = trip, theirs-(before+after)/2
		}
	}
	return origin, nil
}

// sampledOthers collects what the other ranks sampled, and adds their energy to
// the windows'. A gang's energy is known where every node's is.
func (a *attempt) sampledOthers(ctx context.Context, windows []result.Window) error {
	order := sampledOrder{}
	for _, w := range windows {
		order.Spans = append(order.Spans, span{w.Start, w.End})
	}
	in := func(m gang.Member) any {
		own := order
		own.Origin = a.gang.origins[m.Rank]
		return own
	}
	return every(ctx, a.gang, verbSampled, in, func(m gang.Member, s samples) error {
		if s.Fail != nil {
			return s.Fail.failure(m)
		}
		for _, t := range s.Telemetry {
			t.Source = m.Node + "/" + t.Source
			a.telemetry = append(a.telemetry, t)
		}
		for _, c := range s.Checks {
			c.Reason = "node " + m.Node + ": " + c.Reason
			a.checks = append(a.checks, c)
		}
		for i := range windows {
			if i < len(s.Joules) && i < len(s.Why) {
				addJoules(&windows[i], m.Node, s.Joules[i], s.Why[i])
			}
		}
		return nil
	})
}

func addJoules(w *result.Window, node string, joules *float64, why string) {
	const total, each = "energy_joules", "energy_per_output_token"
	own := w.Metrics[total]
	switch {
	case own == nil:
	case joules == nil:
		w.Metrics[total], w.Metrics[each] = nil, nil
		w.NullReasons[total] = "node " + node + ": " + why
		w.NullReasons[each] = w.NullReasons[total]
	default:
		sum := *own + *joules
		if per := w.Metrics[each]; per != nil && *own > 0 {
			scaled := *per * sum / *own
			w.Metrics[each] = &scaled
		}
		w.Metrics[total] = &sum
	}
}

// dismiss has the other ranks tear down, beside this one's own tear-down. What
// could not be, and who cannot be asked any more, comes over the channel.
func (a *attempt) dismiss() <-chan []error {
	done := make(chan []error, 1)
	if a.gang == nil {
		done <- nil
		return done
	}
	go func() {
		var errs []error
		// The grace of the engine, what comes after it, and a margin.
		ctx, cancel := context.WithTimeout(context.Background(), a.stopGrace()+20*time.Second)
		defer cancel()
		close(a.gang.quit)
		answers := make([]stopped, len(a.gang.members))
		var group errgroup.Group
		for i, m := range a.gang.members {
			group.Go(func() error { return a.gang.leader.Call(ctx, m.Rank, verbStop, nil, &answers[i]) })
		}
		errs = append(errs, group.Wait())
		for i, m := range a.gang.members {
			if s := answers[i]; s.Fault != "" {
				errs = append(errs, fmt.Errorf("node %s: %s", m.Node, s.Fault))
			}
			if len(answers[i].Log) > 0 {
				a.keepLog(m, answers[i].Log)
			}
		}
		done <- append(errs, a.gang.leader.Close())
	}()
	return done
}

// keepLog adds the end of another rank's engine log to the attempt.
func (a *attempt) keepLog(m gang.Member, log []byte) {
	name := fmt.Sprintf("engine-rank%d.log", m.Rank)
	f, err := os.OpenFile(a.writer.Path(name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = io.Copy(f, io.LimitReader(bytes.NewReader(log), maxRankLog))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		a.log.Warn("keep the log of another rank", "rank", m.Rank, "error", err)
		return
	}
	a.logs = append(a.logs, name)
}

// monotonic is this node's clock, as others ask for it.
func monotonic() int64 { return gpu.Monotonic() }
