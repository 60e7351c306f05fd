package web

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/batch"
	"sbench/internal/diag"
	"sbench/internal/jobscript"
	"sbench/internal/plan"
	"sbench/internal/quality"
	"sbench/internal/setting"
	"sbench/internal/site"
	"sbench/internal/store"
	"sbench/internal/sweep"
)

const (
	maxFileName = 4096
	maxOption   = 1000 // bytes of one text option
	maxSets     = 1000 // --set assignments
	maxReasons  = 20   // grounds of a refusal that are listed
	// startForecast is what a run takes beside its load where no history tells.
	startForecast = 2 * time.Minute
	statTimeout   = 10 * time.Second
)

var keyForm = regexp.MustCompile(`^[A-Za-z0-9_-]{16,64}$`)

// admission is a submission on its way in.
type admission struct {
	who     auth.Identity
	req     api.SubmitRequest
	options api.Options
	site    *site.Site
	file    *sweep.File
	sweep   sweep.Expansion
	plan    api.Plan
	resp    api.SubmitResponse
	carried map[string]store.Carried // settings that stand on an older result, canaries included
	foreign []string                 // images that are not registered
	repeats map[string]int           // by setting, where they differ; nil: as the sweep says
	nodes   map[string][]string      // that the runs of a setting are for, in turn; nil for any
}

// runs is how many runs a setting gets at once, and how many there can be.
func (a *admission) runs(hash string) (first, most int) {
	if a.repeats != nil {
		return a.repeats[hash], a.repeats[hash]
	}
	return a.sweep.Repeats.First(), a.sweep.Repeats.Runs()
}

// submit admits a sweep, or says what would become of it.
func (s *server) submit(r *http.Request, who auth.Identity) (any, error) {
	var req api.SubmitRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	a, err := s.admit(r.Context(), who, req)
	if err != nil {
		return nil, err
	}
	return a.resp, nil
}

// admit parses and expands the file itself: what a client made of it does not
// count.
func (s *server) admit(ctx context.Context, who auth.Identity, req api.SubmitRequest) (*admission, error) {
	a := &admission{who: who, req: req}
	if err := checkRequest(&a.req); err != nil {
		return nil, err
	}
	select {
	case s.expanding <- struct{}{}:
		defer func() { <-s.expanding }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for _, step := range []func(context.Context, *admission) error{s.read, s.choose, s.depend, s.expand, s.eachNode, s.carry, s.lookUp, s.forecast, s.permit} {
		if err := step(ctx, a); err != nil {
			return nil, err
		}
	}
	if len(a.options.MailType) > 0 && s.Mail != nil {
		if err := s.Mail(); err != nil {
			a.resp.Notes = append(a.resp.Notes, "no mail will be sent: "+err.Error())
		}
	}
	a.resp.Plan = a.plan
	note(ctx, "test_only", a.req.TestOnly)
	note(ctx, "site", a.site.Name)
	note(ctx, "account", a.options.Account)
	note(ctx, "gpu_hours", a.plan.GPUHours)
	note(ctx, "artefacts", artefactsOf(a.sweep.Settings))
	if a.req.TestOnly {
		return a, nil
	}
	a.resp.Plan.Detail = []api.PlanSetting{} // megabytes that nobody asked for
	if err := s.create(ctx, a); err != nil {
		return nil, err
	}
	s.Log.InfoContext(ctx, "sweep admitted", "sweep", a.resp.SweepID, "name", a.plan.Name, "user", who.User, "site", a.site.Name,
		"settings", a.plan.Settings, "runs", a.plan.Runs, "gpu_hours", a.plan.GPUHours, "repeated", a.resp.Repeated)
	return a, nil
}

func invalid(format string, args ...any) *api.Problem {
	return &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf(format, args...)}
}

func refused(reasons []string, format string, args ...any) *api.Problem {
	if len(reasons) > maxReasons {
		more := len(reasons) - maxReasons
		reasons = append(reasons[:maxReasons:maxReasons], fmt.Sprintf("and %d more", more))
	}
	return &api.Problem{Code: api.CodeRefused, Message: fmt.Sprintf(format, args...), Reasons: reasons}
}

// checkRequest bounds everything that a client may say.
func checkRequest(req *api.SubmitRequest) error {
	o := &req.Options
	switch {
	case !keyForm.MatchString(req.IdempotencyKey) && (!req.TestOnly || req.IdempotencyKey != ""):
		return invalid("idempotency_key is not a text of 16 to 64 letters and digits")
	case len(req.FileName) > maxFileName || !printable(req.FileName):
		return invalid("file_name is not a file's name")
	case len(req.File) > sweep.MaxBytes:
		return invalid("the sweep file is larger than %d MiB", sweep.MaxBytes>>20)
	case len(o.Set) > maxSets:
		return invalid("more than %d assignments", maxSets)
	case o.Only != nil && (o.Only.Repeat < 0 || o.Only.Repeat >= 1000 || o.Repeats == nil || *o.Repeats != 1):
		return invalid("only names one run: repeat between 0 and 999, and repeats 1")
	case !slices.Contains([]string{"", "urgent", "normal", "bulk"}, o.Priority):
		return invalid("--priority %q is none of urgent, normal, bulk", o.Priority)
	case o.TimeLimitS != nil && (*o.TimeLimitS < 60 || *o.TimeLimitS > 365*86400):
		return invalid("--time is not between a minute and a year")
	case o.MaxInflight != nil && (*o.MaxInflight < 1 || *o.MaxInflight > 1_000_000):
		return invalid("--max-inflight is not between 1 and 1000000")
	case o.Nice != nil && (*o.Nice < 0 || *o.Nice > 2147483645):
		return invalid("--nice is not between 0 and 2147483645")
	case o.Switches != nil && (*o.Switches < 1 || *o.Switches > 1000):
		return invalid("--switches is not between 1 and 1000")
	case o.MaxGPUHours != nil && *o.MaxGPUHours < 0:
		return invalid("--max-gpu-hours is negative")
	case o.MaxCost != nil && !(*o.MaxCost >= 0):
		return invalid("--max-cost is negative")
	}
	types, err := api.ParseMailType(strings.Join(o.MailType, ","))
	if err != nil {
		return invalid("--mail-type: %v", err)
	}
	o.MailType = types
	if o.MailUser != "" {
		if err := api.CheckMailUser(o.MailUser); err != nil {
			return invalid("--mail-user: %v", err)
		}
	}
	return checkTexts(o)
}

var (
	nameForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.@+-]*$`)
	namesForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.@+-]*(,[A-Za-z0-9][A-Za-z0-9_.@+-]*)*$`)
	nodesForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.,\[\]-]*$`)
)

// checkTexts refuses here what the batch script would refuse later.
func checkTexts(o *api.Options) error {
	for _, t := range []struct {
		flag, value string
		form        *regexp.Regexp
	}{
		{"site", o.Site, nameForm},
		{"job-name", o.JobName, nameForm},
		{"partition", o.Partition, namesForm},
		{"account", o.Account, nameForm},
		{"qos", o.QOS, nameForm},
		{"wckey", o.Wckey, nameForm},
		{"reservation", o.Reservation, namesForm},
		{"nodelist", o.NodeList, nodesForm},
		{"exclude", o.ExcludeNodes, nodesForm},
		{"comment", o.Comment, nil},
		{"gres", o.Gres, nil},
		{"constraint", o.Constraint, nil},
	} {
		if t.value == "" {
			continue
		}
		if len(t.value) > maxOption || !printable(t.value) || t.form != nil && !t.form.MatchString(t.value) {
			return invalid("--%s %q cannot be used: Slurm takes letters, digits and a few signs here", t.flag, clipped(t.value))
		}
	}
	return nil
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func clipped(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}

func (s *server) read(_ context.Context, a *admission) error {
	f, list := sweep.Parse([]byte(a.req.File), a.req.FileName)
	if f == nil {
		return faulty(a.req.FileName, list)
	}
	a.file, a.resp.Warnings = f, list
	a.options = a.req.Options
	o := &a.options
	o.Priority = cmp.Or(o.Priority, string(f.Priority))
	o.JobName = cmp.Or(o.JobName, f.Name)
	a.plan.Name = o.JobName
	return nil
}

func faulty(name string, list diag.List) error {
	n := len(list.Errors())
	word := "faults"
	if n == 1 {
		word = "fault"
	}
	return &api.Problem{Code: api.CodeInvalid, Message: fmt.Sprintf("%s: %d %s", name, n, word), Diagnostics: list}
}

// choose finds the site: the one that is named, or the only one.
func (s *server) choose(ctx context.Context, a *admission) error {
	name := a.options.Site
	if name == "" && a.file != nil {
		name = a.file.Site
	}
	switch {
	case name != "":
		st, err := s.site(name)
		if err != nil {
			var p *api.Problem
			if errors.As(err, &p) {
				p.Code = api.CodeInvalid // the request names it, not the path
			}
			return err
		}
		a.site = st
	case len(s.Sites) == 1:
		a.site = s.Sites[0]
	default:
		return &api.Problem{Code: api.CodeInvalid, Message: "several sites are there and none is named", Hint: "--site takes one of " + strings.Join(s.siteNames(), ", ")}
	}
	a.options.Site = a.site.Name
	a.options.Account = cmp.Or(a.options.Account, a.site.Defaults.Account)
	a.plan.Site, a.plan.Cluster, a.plan.HardwareClass = a.site.Name, a.site.Cluster, a.site.HardwareClass
	modes, err := s.Store.SiteModes(ctx)
	if err != nil {
		return err
	}
	switch m := modes[a.site.Name]; m.Mode {
	case store.SiteDrain:
		reason := cmp.Or(m.Reason, "no reason was given")
		return refused([]string{reason}, "site %s takes no new sweeps: %s drains it", a.site.Name, m.ChangedBy)
	case store.SitePaused:
		a.resp.Notes = append(a.resp.Notes, fmt.Sprintf("site %s is paused: nothing starts before it is resumed", a.site.Name))
	}
	return nil
}

func (s *server) expand(_ context.Context, a *admission) error {
	o := &a.options
	x, list := sweep.Expand(a.file, sweep.Options{
		Set: o.Set, GRES: o.Gres, HardwareByGRES: a.site.HardwareByGRES, Constraint: o.Constraint, Switches: o.Switches,
		Exclusive: o.Exclusive, Repeats: o.Repeats,
	})
	if list.HasErrors() {
		return faulty(a.req.FileName, list)
	}
	if err := checkEachNode(o, x.Repeats.Adaptive()); err != nil {
		return err
	}
	if o.Only != nil {
		if x, list = x.Only(o.Only.SettingHash), nil; len(x.Settings) == 0 {
			return invalid("%s does not expand to setting %s: this build, or the options, are not the ones that it was submitted with", a.req.FileName, clipped(o.Only.SettingHash))
		}
	}
	a.sweep = x
	a.resp.Warnings = append(a.resp.Warnings, x.Warnings...)
	a.resp.Warnings.Sort()
	a.plan.Settings, a.plan.Runs, a.plan.SettingsDigest = len(x.Settings), x.Runs, settingsDigest(x.Settings)
	if want := a.req.SettingsDigest; want != "" && want != a.plan.SettingsDigest {
		return refused(nil, "the file does not expand to the settings any more that were frozen: their digest is %s, not %s", a.plan.SettingsDigest, want)
	}
	return nil
}

// settingsDigest names a list of settings by their hashes.
func settingsDigest(settings []sweep.Expanded) string {
	h := sha256.New()
	for i := range settings {
		_, _ = io.WriteString(h, settings[i].Hash+"\n")
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// planOptions are the options that the planner knows.
func planOptions(o api.Options) plan.Options {
	return plan.Options{
		JobName: o.JobName, Partition: o.Partition, Account: o.Account, QOS: o.QOS, TimeLimitS: o.TimeLimitS, NodeList: o.NodeList,
		ExcludeNodes: o.ExcludeNodes, Reservation: o.Reservation, Nice: o.Nice, Wckey: o.Wckey, Priority: o.Priority, MaxInflight: o.MaxInflight,
	}
}

// forecast plans all runs as if they were submitted now.
func (s *server) forecast(ctx context.Context, a *admission) error {
	series := make([]string, len(a.sweep.Settings))
	for i := range a.sweep.Settings {
		series[i] = a.sweep.Settings[i].Series
	}
	history, err := s.Store.RunSeconds(ctx, a.site.Name, series)
	if err != nil {
		return err
	}
	options := planOptions(a.options)
	unfit, known := map[string]int{}, walls{}
	var runs []plan.Run
	for i := range a.sweep.Settings {
		x := &a.sweep.Settings[i]
		shape, err := plan.ShapeOf(a.site, &x.Setting, options, nil)
		if err != nil {
			unfit[err.Error()]++
			continue
		}
		s.bound(ctx, a.site, known, &shape)
		seconds, measured := history[x.Series]
		if !measured {
			seconds = (plan.RunLimit(&x.Setting, startForecast) + a.quality().Budget()).Seconds()
		}
		first, most := a.runs(x.Hash)
		hours := float64(shape.GPUs) * seconds / 3600
		if c, ok := a.carried[x.Hash]; ok && !c.Canary {
			a.plan.SavedGPUHours += hours * float64(first)
			continue
		}
		a.plan.GPUHours += hours * float64(most)
		a.plan.GPUHoursMin += hours * float64(first)
		a.plan.RunsMax += most
		a.plan.Detail = append(a.plan.Detail, api.PlanSetting{
			SettingHash: x.Hash, Axes: api.Axes(&x.Setting), Repeats: first, RepeatsMax: most, HeldGPUs: shape.GPUs, RunSeconds: seconds,
		})
		for k := range first {
			runs = append(runs, plan.Run{
				ID: int64(len(runs) + 1), SettingHash: x.Hash, Checkpoint: plan.Checkpoint(&x.Setting), Repeat: firstRepeat(a.options) + k,
				Limit: plan.RunLimit(&x.Setting, a.site.Engine.StartTimeout) + a.quality().Budget(), Shape: shape,
			})
		}
	}
	if q := a.quality(); q != nil {
		a.resp.Notes = append(a.resp.Notes, fmt.Sprintf(
			"each run is asked for answers after its measurement (%s), for at most %v: its time limit has that added", q.Method, q.TimeLimit))
	}
	batches, rejected := plan.Pack(runs, plan.LimitsOf(a.site))
	for _, r := range rejected {
		unfit[r.Reason]++
	}
	if len(unfit) > 0 {
		return refused(counted(unfit), "site %s cannot run this sweep", a.site.Name)
	}
	if err := s.tryScripts(a.site, batches, a.options.Comment); err != nil {
		return invalid("%v", err)
	}
	a.plan.Arrays, a.plan.Batches, a.plan.Runs = len(batches), []api.PlanArray{}, len(runs)
	for _, b := range batches {
		a.plan.Tasks += len(b.Tasks)
		a.plan.Batches = append(a.plan.Batches, api.PlanArray{
			Partition: b.Shape.Partition, Account: b.Shape.Account, QOS: b.Shape.QOS, Gres: b.Shape.GRES, Nodes: b.Shape.Nodes,
			Constraint: b.Shape.Constraint, Switches: b.Shape.Switches, Exclusive: b.Shape.Exclusive,
			TimeLimitS: int64(b.TimeLimit.Seconds()), Tasks: len(b.Tasks), Runs: b.Runs(),
		})
	}
	return nil
}

// tryScripts renders the batch scripts: what they refuse would otherwise be
// found out by the submission, when nobody is looking.
func (s *server) tryScripts(st *site.Site, batches []plan.Batch, comment string) error {
	token := batch.NewToken([batch.TokenBytes]byte{})
	for _, b := range batches {
		job := jobscript.Of(st, b)
		job.Token, job.Name, job.Comment = token, jobscript.Name(b.Shape.JobName, token), jobscript.Comment(token, 1, "", comment)
		job.Dir, job.Programs, job.Digest = st.BatchDir(token), st.BinDir(strings.Repeat("0", 64)), batch.Digest(nil)
		job.TaskDigest = job.Digest
		if _, err := s.templates.Array(job); err != nil {
			return err
		}
	}
	return nil
}

// counted lists reasons with how many settings or runs each holds for.
func counted(reasons map[string]int) []string {
	var out []string
	for reason, n := range reasons {
		if n > 1 {
			reason = fmt.Sprintf("%s (%d times)", reason, n)
		}
		out = append(out, reason)
	}
	slices.Sort(out)
	return out
}

// permit refuses what the caller may not do here, or what cannot work.
func (s *server) permit(ctx context.Context, a *admission) error {
	if a.site.SubmitAs == site.SubmitAsUser && a.who.UID != s.UID && !a.who.Operator {
		return refused(nil, "this daemon submits jobs as another user than %s", a.who.User)
	}
	if a.site.SubmitAs == site.SubmitAsService && !s.administers(a.who, a.site.Name) {
		for i := range a.sweep.Settings {
			set := &a.sweep.Settings[i].Setting
			if set.Image.Kind == setting.ImageHost || set.Engine.Kind == setting.EngineCommand {
				return refused(nil, "on site %s image.kind host and engine.kind command are for admins: jobs run under a service account", a.site.Name)
			}
		}
		if q := a.quality(); q != nil && q.Method == quality.Command {
			return refused(nil, "on site %s quality.method command is for admins: jobs run under a service account", a.site.Name)
		}
	}
	if most := a.options.MaxGPUHours; most != nil && a.plan.GPUHours > *most {
		return refused(nil, "the forecast of %.1f GPU-hours is %.1f above --max-gpu-hours %g", a.plan.GPUHours, a.plan.GPUHours-*most, *most)
	}
	if a.who.Account != "" && a.options.Account != a.who.Account {
		return refused(nil, "token %d may spend for account %s only, not for %s", a.who.Token, a.who.Account, cmp.Or(a.options.Account, "the default one"))
	}
	book, err := s.Store.Book(ctx)
	if err != nil {
		return err
	}
	if err := s.priced(a, book); err != nil {
		return err
	}
	if err := s.associated(ctx, a); err != nil {
		return err
	}
	// A submission is checked as it is stored, under the lock of the quotas.
	if a.req.TestOnly {
		if err := s.Store.CheckQuota(ctx, a.site.Name, a.options.Account, a.who.User, a.plan.GPUHours); err != nil {
			return err
		}
	}
	missing, err := missingPaths(ctx, a.site, a.sweep.Settings, a.quality())
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return refused(missing, "files that the sweep names are not there, or are no files")
	}
	if a.site.SubmitAs == site.SubmitAsService && !a.who.Operator && len(a.foreign) > 0 {
		slices.Sort(a.foreign)
		return refused(slices.Compact(a.foreign), "on site %s only registered images run: jobs run under a service account", a.site.Name)
	}
	return nil
}

// missingPaths looks for every artefact that lies in the site's folders. Others
// may exist on the compute nodes alone.
func missingPaths(ctx context.Context, st *site.Site, settings []sweep.Expanded, asked *quality.Definition) ([]string, error) {
	wanted := map[string]string{} // path to axis
	if asked != nil {
		if path := st.ModelPath(asked.ItemsPath); inside(st.Paths.Models, path) {
			wanted[path] = "quality.items.path"
		}
	}
	for i := range settings {
		set := &settings[i].Setting
		for key, path := range map[string]string{
			"image.path":                  st.ImagePath(set.Image.Path),
			"model.checkpoint.path":       st.ModelPath(set.Model.Checkpoint.Path),
			"workload.arrival.trace_path": st.ModelPath(set.Workload.Arrival.TracePath),
			"workload.prompts.file_path":  st.ModelPath(set.Workload.Prompts.FilePath),
		} {
			if inside(st.Paths.Images, path) || inside(st.Paths.Models, path) {
				wanted[path] = key
			}
		}
	}
	type answer struct{ missing []string }
	done := make(chan answer, 1)
	go func() { // a hung file system must not hold the request
		var missing []string
		for path, key := range wanted {
			switch info, err := os.Stat(path); {
			case errors.Is(err, fs.ErrNotExist):
				missing = append(missing, fmt.Sprintf("%s: no such file: %s", key, path))
			case err == nil && info.IsDir() && key == "image.path":
				missing = append(missing, fmt.Sprintf("%s: is a folder: a sandbox's content can change while the sweep runs: %s", key, path))
			}
		}
		slices.Sort(missing)
		done <- answer{missing}
	}()
	timer := time.NewTimer(statTimeout)
	defer timer.Stop()
	select {
	case a := <-done:
		return a.missing, nil
	case <-timer.C:
		return nil, &api.Problem{Code: api.CodeUnavailable, Message: "the site's file system does not answer", Hint: "try again later; nothing was submitted"}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// artefactsOf lists what the settings use, with its digest: what the audit log
// keeps of every use of an image or a checkpoint.
func artefactsOf(settings []sweep.Expanded) []string {
	var list []string
	for i := range settings {
		set := &settings[i].Setting
		for _, a := range [][3]string{
			{"image", set.Image.Path, set.Image.Digest}, {"checkpoint", set.Model.Checkpoint.Path, set.Model.Checkpoint.Digest},
		} {
			text := a[0] + " " + a[1] + " " + a[2]
			if a[1] != "" && !slices.Contains(list, text) {
				list = append(list, text)
			}
		}
	}
	return list
}

func inside(folder, path string) bool {
	rel, err := filepath.Rel(folder, path)
	return path != "" && err == nil && filepath.IsLocal(rel)
}

// quality is what is asked after each measurement; nil for nothing.
func (a *admission) quality() *quality.Definition {
	if a.file == nil {
		return nil // runs again of another sweep, which are about its measurements
	}
	return a.file.Quality
}

func firstRepeat(o api.Options) int {
	if o.Only == nil {
		return 0
	}
	return o.Only.Repeat
}

// create stores the sweep with its settings and runs.
func (s *server) create(ctx context.Context, a *admission) error {
	options, err := json.Marshal(a.options)
	if err != nil {
		return fmt.Errorf("encode options: %w", err)
	}
	repeats, err := json.Marshal(a.sweep.Repeats)
	if err != nil {
		return fmt.Errorf("encode repeats: %w", err)
	}
	n := store.NewSweep{
		Name: a.plan.Name, UserName: a.who.User, UID: a.who.UID, Account: a.options.Account, Site: a.site.Name, Priority: a.options.Priority,
		IdempotencyKey: a.req.IdempotencyKey, File: a.req.File, Options: options, Repeats: repeats, SLO: a.file.SLO,
		MaxErrorRate: a.file.MaxErrorRate, Quality: a.file.Quality, HardwareClass: a.site.HardwareClass, GPUHours: &a.plan.GPUHours, BeginAt: a.options.Begin,
		Held: a.options.Hold, Dependency: a.options.Dependency,
		MailTypes: a.options.MailType, MailUser: a.options.MailUser,
	}
	most := 0
	if a.sweep.Repeats.Adaptive() {
		most = a.sweep.Repeats.Max
	}
	for i := range a.sweep.Settings {
		x := &a.sweep.Settings[i]
		first, _ := a.runs(x.Hash)
		n.Settings = append(n.Settings, store.NewSetting{
			Hash: x.Hash, SeriesHash: x.Series, CanonicalSpec: x.Setting.Canonical(), Setting: x.Setting, Repeats: first,
			RepeatsMax: most, FirstRepeat: firstRepeat(a.options), Nodes: a.nodes[x.Hash], EachNode: a.options.EachNode,
		})
		if c, ok := a.carried[x.Hash]; ok {
			n.Settings[i].Carried = &c
		}
	}
	id, created, err := s.Store.CreateSweep(ctx, n)
	if err != nil {
		return err
	}
	a.resp.SweepID, a.resp.Repeated = id, !created
	note(ctx, "sweep", id)
	note(ctx, "repeated", !created)
	return nil
}
