package cli

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"sbench/internal/api"
	"sbench/internal/batch"
	"sbench/internal/jobscript"
	"sbench/internal/plan"
	"sbench/internal/quality"
	"sbench/internal/setting"
	"sbench/internal/site"
	"sbench/internal/sweep"
	"sbench/sbatch"
)

type renderOptions struct {
	offlineOptions
	out       string
	templates string
}

func newRenderCommand(a *app) *cobra.Command {
	o := &renderOptions{}
	cmd := &cobra.Command{
		Use:   "render --site FILE SWEEP.yaml",
		Short: "write the batch scripts and manifests that would be submitted",
		Long: `Plans the sweep for the site of a site file and writes one folder per job array:
batch.sbatch, batch.json and task.sh. Without -o the scripts are printed. What
only a submission knows stands in: runs are counted from 1, tokens are made of
the content, and the programs' folder has zeros for its digest. ` + offlineHelp,
		Example: "sbench render --site north.yaml -o out nightly.yaml",
		Args:    nArgs(1, 1, "SWEEP.yaml"),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(a, cmd, args[0]) },
	}
	o.flags(cmd)
	f := cmd.Flags()
	o.addJobFlags(f)
	f.StringVarP(&o.out, "output", "o", "", "write into `dir`, which must not hold any of the folders")
	f.StringVar(&o.templates, "templates", "", "use the templates in `dir` where there are any")
	exits(cmd, exitOK, exitFailed, exitUsage, exitRefused)
	return cmd
}

// rendered is one job array as it would be submitted.
type rendered struct {
	Token     string `json:"token"`
	Tasks     int    `json:"tasks"`
	Runs      int    `json:"runs"`
	Directory string `json:"directory"` // "" where it was only printed
	Script    string `json:"script"`

	spec []byte
}

func (o *renderOptions) run(a *app, cmd *cobra.Command, name string) error {
	src, err := a.load(cmd.Flags(), name)
	if err != nil {
		return err
	}
	s, err := src.siteFile()
	if err != nil {
		return err
	}
	if s == nil {
		return &failure{status: exitUsage, message: "missing flag: --site FILE", hint: "site-configs/ has examples"}
	}
	x, err := expand(src.file, src.shown, src.options, s)
	if err != nil {
		return err
	}
	batches, err := planned(s, src, x)
	if err != nil {
		return err
	}
	templates, err := jobscript.Load(o.templates)
	if err != nil {
		return &failure{status: exitUsage, message: err.Error(), err: err}
	}
	list := make([]rendered, len(batches))
	for i, b := range batches {
		if list[i], err = render(templates, s, src, x, b, i); err != nil {
			return err
		}
		if o.out != "" {
			list[i].Directory = filepath.Join(o.out, list[i].Token)
			if err := list[i].write(); err != nil {
				return err
			}
		}
	}
	if a.json {
		return writeJSON(a.stdout, list)
	}
	for _, r := range list {
		if o.out == "" {
			a.print("%s", r.Script)
			continue
		}
		a.print("%s: %s, %s\n", r.Directory, plural(r.Tasks, "task"), plural(r.Runs, "run"))
	}
	return nil
}

// planned packs the runs that are planned at once as the daemon would with an
// empty queue.
func planned(s *site.Site, src *source, x sweep.Expansion) ([]plan.Batch, error) {
	options := planOptions(src.options)
	options.JobName = cmp.Or(options.JobName, src.file.Name)
	options.Priority = cmp.Or(options.Priority, string(src.file.Priority))
	reasons := map[string]bool{}
	var runs []plan.Run
	for k := range x.Repeats.First() {
		for i := range x.Settings {
			e := &x.Settings[i]
			shape, err := plan.ShapeOf(s, &e.Setting, options, nil)
			if err != nil {
				reasons[err.Error()] = true
				continue
			}
			runs = append(runs, plan.Run{
				ID: int64(len(runs) + 1), SettingHash: e.Hash, Checkpoint: plan.Checkpoint(&e.Setting), Repeat: k,
				Limit: plan.RunLimit(&e.Setting, s.Engine.StartTimeout) + src.file.Quality.Budget(), Shape: shape,
			})
		}
	}
	batches, unfit := plan.Pack(runs, plan.LimitsOf(s))
	for _, r := range unfit {
		reasons[r.Reason] = true
	}
	if len(reasons) > 0 {
		f := &failure{status: exitRefused, message: fmt.Sprintf("site %s cannot run this sweep", s.Name)}
		for r := range reasons {
			f.reasons = append(f.reasons, r)
		}
		return nil, f.sorted()
	}
	return batches, nil
}

// planOptions are the options that the planner knows.
func planOptions(o api.Options) plan.Options {
	return plan.Options{
		JobName: o.JobName, Partition: o.Partition, Account: o.Account, QOS: o.QOS, TimeLimitS: o.TimeLimitS, NodeList: o.NodeList,
		ExcludeNodes: o.ExcludeNodes, Reservation: o.Reservation, Nice: o.Nice, Wckey: o.Wckey, Priority: o.Priority, MaxInflight: o.MaxInflight,
	}
}

// render makes the files of one batch.
func render(t *jobscript.Templates, s *site.Site, src *source, x sweep.Expansion, b plan.Batch, index int) (rendered, error) {
	var bits [batch.TokenBytes]byte
	sum := sha256.Sum256(fmt.Appendf(nil, "%d\n%s", index, src.text))
	copy(bits[:], sum[:])
	token := batch.NewToken(bits)
	if n := src.options.MaxInflight; n != nil && (b.Shape.Throttle == 0 || *n < b.Shape.Throttle) {
		b.Shape.Throttle = min(*n, len(b.Tasks))
	}
	data, digest, err := batch.Encode(specOf(s, src, x, b, token))
	if err != nil {
		return rendered{}, err
	}
	job := jobscript.Of(s, b)
	job.Token, job.Digest, job.TaskDigest, job.Dir = token, digest, batch.Digest(sbatch.Task), s.BatchDir(token)
	job.Name = jobscript.Name(b.Shape.JobName, token)
	job.Comment = jobscript.Comment(token, 0, "", src.options.Comment)
	job.Programs = s.BinDir(strings.Repeat("0", 64))
	script, err := t.Array(job)
	if err != nil {
		return rendered{}, &failure{status: exitUsage, message: err.Error(), err: err}
	}
	return rendered{Token: token, Tasks: len(b.Tasks), Runs: b.Runs(), Script: string(script), spec: data}, nil
}

// specOf is the batch as its tasks would read it.
func specOf(s *site.Site, src *source, x sweep.Expansion, b plan.Batch, token string) *batch.Spec {
	helper := s.Paths.GPUHelper
	if helper != "" {
		helper = s.BinDir(strings.Repeat("0", 64)) + "/sbench-gpu"
	}
	spec := &batch.Spec{
		Version: batch.Version, Token: token, Site: s.Name, Cluster: s.Cluster, HardwareClass: s.HardwareClass, UID: os.Getuid(),
		AttemptsDir: s.AttemptsDir(), CacheDir: s.Paths.Cache, Node: s.Node(helper), Settings: map[string]setting.Setting{},
	}
	known := map[string]*sweep.Expanded{}
	for i := range x.Settings {
		known[x.Settings[i].Hash] = &x.Settings[i]
	}
	for i, t := range b.Tasks {
		task := batch.Task{Index: i}
		for _, r := range t.Runs {
			e := known[r.SettingHash]
			spec.Settings[r.SettingHash] = resolved(s, e.Setting)
			task.Runs = append(task.Runs, batch.Run{
				ID: r.ID, SettingHash: r.SettingHash, SeriesHash: e.Series, Repeat: r.Repeat, TimeLimit: r.Limit,
				SLO: src.file.SLO, MaxErrorRate: src.file.MaxErrorRate, Quality: asked(s, src.file.Quality),
			})
		}
		spec.Tasks = append(spec.Tasks, task)
	}
	return spec
}

// asked makes the path of the items absolute.
func asked(s *site.Site, d *quality.Definition) *quality.Definition {
	if d == nil || d.ItemsPath == "" {
		return d
	}
	own := *d
	own.ItemsPath = s.ModelPath(d.ItemsPath)
	return &own
}

// resolved makes the paths of a setting absolute; they are labels.
func resolved(s *site.Site, set setting.Setting) setting.Setting {
	set.Model.Checkpoint.Path = s.ModelPath(set.Model.Checkpoint.Path)
	set.Image.Path = s.ImagePath(set.Image.Path)
	set.Workload.Arrival.TracePath = s.ModelPath(set.Workload.Arrival.TracePath)
	set.Workload.Prompts.FilePath = s.ModelPath(set.Workload.Prompts.FilePath)
	return set
}

// write puts the files into a folder of their own.
func (r rendered) write() error {
	if err := os.MkdirAll(filepath.Dir(r.Directory), 0o755); err != nil {
		return fmt.Errorf("write batch: %w", err)
	}
	if err := os.Mkdir(r.Directory, 0o755); err != nil {
		if errors.Is(err, os.ErrExist) {
			return &failure{status: exitFailed, message: r.Directory + " is there already: nothing was overwritten", hint: "remove it, or give another -o", err: err}
		}
		return fmt.Errorf("write batch: %w", err)
	}
	for _, f := range []struct {
		name string
		data []byte
		mode os.FileMode
	}{{batch.SpecFile, r.spec, 0o644}, {batch.ScriptFile, []byte(r.Script), 0o755}, {batch.TaskFile, sbatch.Task, 0o755}} {
		if err := os.WriteFile(filepath.Join(r.Directory, f.name), f.data, f.mode); err != nil {
			return fmt.Errorf("write batch: %w", err)
		}
	}
	return nil
}
