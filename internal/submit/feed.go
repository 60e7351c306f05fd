package submit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"sbench/internal/batch"
	"sbench/internal/jobscript"
	"sbench/internal/lifecycle"
	"sbench/internal/plan"
	"sbench/internal/quality"
	"sbench/internal/setting"
	"sbench/internal/store"
	"sbench/sbatch"
)

const (
	// mostPlanned is how many pending runs are looked at in one turn.
	mostPlanned = 50_000
	// historyAge is how far back run times are believed.
	historyAge = 90 * 24 * time.Hour
)

// feed plans pending runs and submits as many as there is room for.
func (s *Service) feed(ctx context.Context) error {
	now := s.Now()
	if now.Before(s.full) {
		return nil
	}
	if err := s.limits.refresh(ctx, s.Cluster, now); err != nil {
		return err
	}
	if s.limits.slurm.Raw["MaxArraySize"] == "0" {
		return errors.New("the cluster takes no job arrays: MaxArraySize is 0 in its slurm.conf")
	}
	room, err := s.room(ctx)
	if err != nil || room.site <= 0 {
		return err
	}
	pending, err := s.Store.PendingRuns(ctx, s.Site.Name, mostPlanned)
	if err != nil || len(pending.Runs) == 0 {
		return err
	}
	drift, err := s.Store.NodesToAvoid(ctx, s.Site.Name, now.Add(-store.DriftAge))
	if err != nil {
		return err
	}
	history, err := s.history(ctx, pending)
	if err != nil {
		return err
	}
	runs, impossible := s.shape(ctx, pending, drift, history)
	limits := plan.LimitsOf(s.Site)
	limits.ArrayTasks = s.limits.array(min(limits.ArrayTasks, room.queue))
	if s.most > 0 && now.Before(s.mostFor) {
		limits.ArrayTasks = min(limits.ArrayTasks, s.most)
	}
	batches, refused := plan.Pack(runs, limits)
	for _, r := range refused {
		impossible[r.Reason] = append(impossible[r.Reason], r.Run.ID)
	}
	errs := []error{s.bury(ctx, impossible)}
	feed, err := s.share(ctx, room, pending, runs)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, b := range feed.Share(s.admissible(ctx, room, batches, pending)) {
		if s.isFull(owner{b.Shape.Account, b.Shape.QOS}, s.Now()) {
			continue
		}
		if mode, err := s.mode(ctx); err != nil || mode != store.SiteActive {
			return errors.Join(append(errs, err)...)
		}
		part, ok := room.take(s, b, inflight(pending.Sweeps[b.Shape.Sweep]))
		if !ok {
			continue
		}
		if err := s.commit(ctx, part, pending); err != nil {
			errs = append(errs, err)
			if err := stop(ctx, errs); err != nil {
				return err
			}
		}
	}
	return errors.Join(errs...)
}

// room is how many tasks may be added to the queue.
type room struct {
	queue    int // how many may be in it
	site     int // how many more
	hardware map[string]int
	throttle map[int64]int // of the sweeps' open batches
	queued   map[owner]int // tasks in the queue by account and QOS
	owners   map[owner]allowance
}

// allowance is what an account and QOS may have in the queue.
type allowance struct {
	most, free int
}

// open notes how much room an account and QOS have, the first time they are met.
func (r *room) open(ctx context.Context, s *Service, o owner) {
	if _, known := r.owners[o]; known {
		return
	}
	a := allowance{r.queue, r.queue}
	if most, limited := s.limits.of(ctx, s.Cluster, s.user, o); limited {
		a = allowance{most, most - r.queued[o]}
	}
	r.owners[o] = a
}

func (s *Service) room(ctx context.Context) (*room, error) {
	load, err := s.Store.SiteLoad(ctx, s.Site.Name)
	if err != nil {
		return nil, err
	}
	r := &room{queue: s.limits.queue(s.Site.Limits.MaxQueue), hardware: map[string]int{}, throttle: map[int64]int{}, queued: map[owner]int{}, owners: map[owner]allowance{}}
	r.site = r.queue
	for id := range s.Site.Hardware {
		r.hardware[id] = s.Site.QueueLimit(id)
	}
	for _, l := range load {
		r.site -= l.Tasks
		r.hardware[l.Hardware] -= l.Tasks
		r.throttle[l.Sweep] += l.Throttle
		r.queued[owner{l.Account, l.QOS}] += l.Tasks
	}
	return r, nil
}

// take cuts from the batch what there is room for. A batch is not cut into
// slivers as tasks end one by one: it waits until a quarter of the queue is free.
func (r *room) take(s *Service, b plan.Batch, inflight int) (plan.Batch, bool) {
	who := owner{b.Shape.Account, b.Shape.QOS}
	may := r.owners[who]
	free := min(r.site, r.hardware[b.Shape.Hardware], may.free)
	least := min(len(b.Tasks), max(1, min(r.queue, s.Site.QueueLimit(b.Shape.Hardware), may.most)/4))
	if free < least {
		return b, false
	}
	b = b.Head(free)
	if inflight > 0 {
		// A sweep's arrays share its limit. One that gets nothing of it waits.
		share := inflight - r.throttle[b.Shape.Sweep]
		if share <= 0 {
			return b, false
		}
		if b.Shape.Throttle == 0 || share < b.Shape.Throttle {
			b.Shape.Throttle = share
		}
		b.Shape.Throttle = min(b.Shape.Throttle, max(len(b.Tasks), 1))
		r.throttle[b.Shape.Sweep] += b.Shape.Throttle
	}
	r.site -= len(b.Tasks)
	may.free -= len(b.Tasks)
	r.owners[who] = may
	r.hardware[b.Shape.Hardware] -= len(b.Tasks)
	return b, true
}

// admissible drops the batches that get nothing now whatever is free: of accounts
// that may not have more in the queue, or were just told so, and of sweeps at their own limit. What is
// shared out is for the others.
func (s *Service) admissible(ctx context.Context, r *room, batches []plan.Batch, pending store.Pending) []plan.Batch {
	return slices.DeleteFunc(batches, func(b plan.Batch) bool {
		who := owner{b.Shape.Account, b.Shape.QOS}
		r.open(ctx, s, who)
		may := r.owners[who]
		most := inflight(pending.Sweeps[b.Shape.Sweep])
		return s.isFull(who, s.Now()) || may.free < min(len(b.Tasks), max(1, may.most/4)) || most > 0 && r.throttle[b.Shape.Sweep] >= most
	})
}

func options(sweep store.Sweep) plan.Options {
	var o plan.Options
	// Admission stored them; what is not understood has no effect on the plan.
	_ = json.Unmarshal(sweep.Options, &o)
	o.Account = cmp.Or(o.Account, sweep.Account)
	o.Priority = cmp.Or(o.Priority, sweep.Priority)
	return o
}

func inflight(sweep store.Sweep) int {
	if o := options(sweep); o.MaxInflight != nil {
		return *o.MaxInflight
	}
	return 0
}

// history returns how long runs of the pending series took here.
func (s *Service) history(ctx context.Context, pending store.Pending) (map[string]plan.History, error) {
	var series []string
	for _, r := range pending.Runs {
		series = append(series, r.SeriesHash)
	}
	slices.Sort(series)
	series = slices.Compact(series)
	times, err := s.Store.RunTimes(ctx, s.Site.Name, series, s.Now().Add(-historyAge))
	if err != nil {
		return nil, err
	}
	history := map[string]plan.History{}
	for _, t := range times {
		history[t.SeriesHash] = plan.History{Runs: t.Runs, P99: time.Duration(t.P99S * float64(time.Second))}
	}
	return history, nil
}

// shape makes plannable runs, and lists those that cannot be planned by reason.
func (s *Service) shape(ctx context.Context, pending store.Pending, drift map[string][]string, history map[string]plan.History) ([]plan.Run, map[string][]int64) {
	type key struct {
		setting     store.SettingKey
		avoid, node string
	}
	type shaped struct {
		shape plan.Shape
		err   error
	}
	known := map[key]shaped{}
	opts := map[int64]plan.Options{}
	for id, sweep := range pending.Sweeps {
		opts[id] = options(sweep)
	}
	var runs []plan.Run
	impossible := map[string][]int64{}
	for _, r := range pending.Runs {
		avoid := slices.Concat(r.AvoidNodes, drift[r.SettingHash], drift[""])
		slices.Sort(avoid)
		avoid = slices.Compact(avoid)
		k := key{store.SettingKey{SweepID: r.SweepID, SettingHash: r.SettingHash}, strings.Join(avoid, ","), r.Node}
		set := pending.Settings[k.setting]
		got, ok := known[k]
		if !ok {
			got.shape, got.err = plan.ShapeOf(s.Site, &set, opts[r.SweepID], avoid)
			if got.err == nil {
				got.shape.Sweep = r.SweepID
				got.shape.Pin(r.Node, avoid)
				s.limits.bound(ctx, s.Cluster, s.user, &got.shape)
			}
			known[k] = got
		}
		if got.err != nil {
			impossible[got.err.Error()] = append(impossible[got.err.Error()], r.ID)
			continue
		}
		runs = append(runs, plan.Run{
			ID: r.ID, SettingHash: r.SettingHash, Checkpoint: plan.Checkpoint(&set), Repeat: r.Repeat,
			Limit: history[r.SeriesHash].LimitFrom(&set, s.Site.Engine.StartTimeout) + pending.Sweeps[r.SweepID].Quality.Budget(), Shape: got.shape,
		})
	}
	return runs, impossible
}

// bury puts runs that can never be submitted on the dead-letter list.
func (s *Service) bury(ctx context.Context, impossible map[string][]int64) error {
	var errs []error
	for reason, runs := range impossible {
		_, err := s.Store.SetRunState(ctx, store.Change{Runs: runs, To: lifecycle.RunDead, By: lifecycle.ActorSubmit, Reason: reason})
		if err != nil {
			errs = append(errs, fmt.Errorf("give up %d runs (%s): %w", len(runs), reason, err))
		}
	}
	return errors.Join(errs...)
}

// commit freezes a batch, commits it and submits it.
func (s *Service) commit(ctx context.Context, p plan.Batch, pending store.Pending) error {
	var bits [batch.TokenBytes]byte
	random(bits[:])
	token := batch.NewToken(bits)
	sweep := pending.Sweeps[p.Shape.Sweep]
	spec := s.spec(token, p, pending)
	flags, err := s.Store.SettingFlags(ctx, slices.Collect(maps.Keys(spec.Settings)))
	if err != nil {
		return err
	}
	spec.Flags = flags
	data, digest, err := batch.Encode(spec)
	if err != nil {
		return err
	}
	dir := s.Site.BatchDir(token)
	name := jobscript.Name(p.Shape.JobName, token)
	script, err := s.templates.Array(s.job(token, name, dir, digest, p, sweep))
	if err != nil {
		// Admission lets nothing through that cannot be rendered; a site's template may.
		return s.bury(ctx, map[string][]int64{err.Error(): runsOf(p)})
	}
	shape, err := json.Marshal(p.Shape)
	if err != nil {
		return fmt.Errorf("encode shape: %w", err)
	}
	if err := Freeze(dir, data, script, sbatch.Task); err != nil {
		return err
	}
	s.Failpoint(FailFrozen)
	n := store.NewBatch{
		Token: token, Site: s.Site.Name, Cluster: s.Site.Cluster, UID: spec.UID, UserName: sweep.UserName, Account: p.Shape.Account,
		Dir: dir, AttemptsDir: spec.AttemptsDir, Digest: digest, Shape: shape, TimeLimit: p.TimeLimit, Throttle: p.Shape.Throttle, JobName: name,
	}
	for _, t := range p.Tasks {
		task := store.NewTask{TimeLimit: t.Limit, GPUs: p.Shape.GPUs}
		for _, r := range t.Runs {
			task.Runs = append(task.Runs, r.ID)
		}
		n.Tasks = append(n.Tasks, task)
	}
	if err := s.Store.CreateBatch(ctx, n); err != nil {
		if errors.Is(err, store.ErrStale) {
			return os.RemoveAll(dir) // a user was faster; the next turn plans what is left
		}
		return err // it may have been committed: the folder stays
	}
	s.Log.InfoContext(ctx, "batch committed", "token", token, "sweep", sweep.ID, "tasks", len(p.Tasks), "runs", p.Runs())
	s.Failpoint(FailCommitted)
	made, err := s.Store.Batches(ctx, token)
	if err != nil || len(made) != 1 {
		return err
	}
	return s.advance(ctx, made[0])
}

func runsOf(p plan.Batch) []int64 {
	var ids []int64
	for _, t := range p.Tasks {
		for _, r := range t.Runs {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// spec is the batch as its tasks will read it.
func (s *Service) spec(token string, p plan.Batch, pending store.Pending) *batch.Spec {
	spec := &batch.Spec{
		Version: batch.Version, Token: token, Site: s.Site.Name, Cluster: s.Site.Cluster, HardwareClass: s.Site.HardwareClass,
		UID: os.Getuid(), AttemptsDir: s.Site.AttemptsDir(), CacheDir: s.Site.Paths.Cache, Node: s.Site.Node(s.helper()),
		Settings: map[string]setting.Setting{},
	}
	sweep := pending.Sweeps[p.Shape.Sweep]
	series := make(map[int64]string, len(pending.Runs))
	for _, r := range pending.Runs {
		series[r.ID] = r.SeriesHash
	}
	for i, t := range p.Tasks {
		task := batch.Task{Index: i}
		for _, r := range t.Runs {
			if _, known := spec.Settings[r.SettingHash]; !known {
				set := pending.Settings[store.SettingKey{SweepID: p.Shape.Sweep, SettingHash: r.SettingHash}]
				spec.Settings[r.SettingHash] = s.resolve(set)
			}
			task.Runs = append(task.Runs, batch.Run{
				ID: r.ID, Sweep: p.Shape.Sweep, SettingHash: r.SettingHash, SeriesHash: series[r.ID], Repeat: r.Repeat,
				TimeLimit: r.Limit, SLO: sweep.SLO, MaxErrorRate: sweep.MaxErrorRate, Quality: s.asked(sweep.Quality),
			})
		}
		spec.Tasks = append(spec.Tasks, task)
	}
	return spec
}

// asked makes the path of the items absolute.
func (s *Service) asked(d *quality.Definition) *quality.Definition {
	if d == nil || d.ItemsPath == "" {
		return d
	}
	own := *d
	own.ItemsPath = s.Site.ModelPath(d.ItemsPath)
	return &own
}

// resolve makes the paths of a setting absolute; they are labels.
func (s *Service) resolve(set setting.Setting) setting.Setting {
	set.Model.Checkpoint.Path = s.Site.ModelPath(set.Model.Checkpoint.Path)
	set.Image.Path = s.Site.ImagePath(set.Image.Path)
	set.Workload.Arrival.TracePath = s.Site.ModelPath(set.Workload.Arrival.TracePath)
	set.Workload.Prompts.FilePath = s.Site.ModelPath(set.Workload.Prompts.FilePath)
	return set
}

// job is what the template sees.
func (s *Service) job(token, name, dir, digest string, p plan.Batch, sweep store.Sweep) jobscript.Job {
	var comment struct {
		Comment string `json:"comment"`
	}
	_ = json.Unmarshal(sweep.Options, &comment)
	shape := p.Shape
	j := jobscript.Job{
		Name: name, Token: token, Comment: jobscript.Comment(token, sweep.ID, sweep.UserName, comment.Comment),
		Tasks: len(p.Tasks), Throttle: shape.Throttle,
		Partition: shape.Partition, Account: shape.Account, QOS: shape.QOS, WCKey: shape.WCKey, Reservation: shape.Reservation,
		Nice: shape.Nice, Dependency: shape.Dependency, GRES: shape.GRES, StepGRES: shape.StepGRES, Nodes: shape.Nodes, CPUs: shape.CPUs,
		Memory: shape.Memory, Exclusive: shape.Exclusive, OwnUser: shape.OwnUser, Constraint: shape.Constraint, Switches: shape.Switches,
		NodeList: shape.NodeList, Exclude: shape.Exclude,
		TimeLimit: p.TimeLimit, Grace: s.Site.Jobs.Signal, Requeue: s.Site.Jobs.Requeue,
		Dir: dir, Digest: digest, TaskDigest: batch.Digest(sbatch.Task), Programs: s.programs,
	}
	for _, key := range slices.Sorted(maps.Keys(s.Site.Jobs.Options)) {
		j.Options = append(j.Options, jobscript.Option{Name: key, Value: s.Site.Jobs.Options[key]})
	}
	return j
}
