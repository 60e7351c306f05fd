package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sbench/internal/batch"
	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/remote"
	"sbench/internal/result"
	"sbench/internal/runner/engine"
	"sbench/internal/runner/preflight"
	"sbench/internal/runner/stage"
	"sbench/internal/setting"
	"sbench/internal/version"
	"sbench/internal/workload"
)

const emulated = "emulated"

// verify hashes the artefacts, reads the node, and refuses where anything pinned
// differs or cannot be read.
func (a *attempt) verify(ctx context.Context) error {
	a.fingerprint = fingerprint.Fingerprint{Version: fingerprint.Version, Runner: version.String()}
	others, err := a.alongside(ctx, verbVerify, nil, func(ctx context.Context) error {
		if err := a.hash(ctx); err != nil {
			return err
		}
		a.fingerprint.Allocation = host().Allocation()
		node, err := a.ownNode(ctx)
		a.fingerprint.Nodes = []fingerprint.Node{node}
		return err
	})
	if err != nil {
		return err
	}
	a.fingerprint.Nodes = append(a.fingerprint.Nodes, others...)
	if err := a.compare(fingerprint.StageNode); err != nil {
		return err
	}
	if err := a.checkLimits(); err != nil {
		return err
	}
	plan, err := workload.New(a.setting.Workload, a.run.Repeat, a.artefacts.inputs)
	if err != nil {
		return fail(lifecycle.ExitSpec, "plan", fmt.Errorf("plan the load: %w", err))
	}
	a.plan = plan
	return nil
}

// hash stages and hashes image, checkpoint and input files, all at once.
func (a *attempt) hash(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, orDefault(a.spec.Node.Deadlines.Digest, 30*time.Minute))
	defer cancel()
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.hashImage(ctx) })
	group.Go(func() (err error) {
		if path := a.setting.Model.Checkpoint.Path; path != "" {
			a.artefacts.checkpoint, err = a.stageCheckpoint(ctx, path, a.setting.Model.Checkpoint.Digest)
		}
		return err
	})
	w := a.setting.Workload
	var lines []string
	group.Go(func() (err error) {
		if w.Arrival.Process == setting.ProcessTrace {
			a.artefacts.inputs.Trace, err = readInput(w.Arrival.TracePath, "workload.arrival.trace_digest", w.Arrival.TraceDigest, &lines)
		}
		if err == nil && w.Prompts.Source == "file" {
			a.artefacts.inputs.Prompts, err = readInput(w.Prompts.FilePath, "workload.prompts.file_digest", w.Prompts.FileDigest, &lines)
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return fail(lifecycle.ExitStaging, "", fmt.Errorf("STAGING: %w", err))
	}
	if len(lines) > 0 {
		return &failure{class: lifecycle.ExitDriftArtefact, reasons: lines, signature: "drift input"}
	}
	a.fingerprint.Checkpoint = described(a.artefacts.checkpoint)
	a.log.Info("hashed", "bytes", a.fingerprint.Image.Size+a.fingerprint.Checkpoint.Size, "seconds", time.Since(began).Seconds())
	return nil
}

func (a *attempt) hashImage(ctx context.Context) (err error) {
	image := a.setting.Image
	switch image.Kind {
	case setting.ImageSIF:
		cache, err := a.openCache()
		if err != nil {
			return err
		}
		if a.artefacts.image, err = cache.Image(ctx, image.Path, image.Digest, a.spec.Node.HashOnce); err != nil {
			return err
		}
		a.fingerprint.Image = described(a.artefacts.image.Source)
	case setting.ImageHost:
		if a.artefacts.program, err = a.digest(ctx, image.Path); err != nil {
			return err
		}
		if a.artefacts.program.IsDir {
			return fmt.Errorf("image %s is a folder, not an executable", image.Path)
		}
		a.fingerprint.Image = described(a.artefacts.program)
	default:
		return fmt.Errorf("image kind %q is not known", image.Kind)
	}
	a.fingerprint.Image.Kind = string(image.Kind)
	return nil
}

// digest reads a file or folder, or remembers that this node has done so.
func (a *attempt) digest(ctx context.Context, path string) (stage.Artefact, error) {
	if !a.spec.Node.HashOnce {
		return stage.Digest(ctx, path)
	}
	cache, err := a.openCache()
	if err != nil {
		return stage.Artefact{}, err
	}
	return cache.Once(ctx, path)
}

// stageCheckpoint digests the checkpoint where it lies, or in the node's cache
// where a mirror of the site had to give it.
func (a *attempt) stageCheckpoint(ctx context.Context, path, pinned string) (stage.Artefact, error) {
	if len(a.spec.Node.Mirrors) == 0 {
		return a.digest(ctx, path)
	}
	cache, err := a.openCache()
	if err != nil {
		return stage.Artefact{}, err
	}
	x, err := cache.Checkpoint(ctx, path, pinned, a.spec.Node.HashOnce)
	if err == nil && x.Path != path {
		a.log.Info("the checkpoint cannot be opened where it should lie: a copy of what a mirror has is used", "path", path, "copy", x.Path)
	}
	return x, err
}

// openCache opens the node's cache, with the mirrors of the site behind it.
func (a *attempt) openCache() (*stage.Cache, error) {
	var mirrors []stage.Mirror
	for _, m := range a.spec.Node.Mirrors {
		mirrors = append(mirrors, stage.Mirror{Name: m.URL, Open: func(ctx context.Context) (stage.Tree, error) {
			tree, err := remote.Open(ctx, m)
			if err != nil {
				return nil, err // not a Tree that holds nil
			}
			return tree, nil
		}})
	}
	return stage.OpenCache(a.dirs.cache, a.spec.Node.CacheLimit, mirrors...)
}

func described(x stage.Artefact) fingerprint.Artefact {
	if x.Path == "" {
		return fingerprint.Artefact{}
	}
	kind := "file"
	if x.IsDir {
		kind = "directory"
	}
	d := fingerprint.Artefact{Kind: kind, Path: x.Path, Digest: x.Digest, Size: x.Size, Files: x.Files, Hashed: x.Hashed}
	if !x.Since.IsZero() {
		d.HashedSince = &x.Since
	}
	return d
}

// readInput reads a file that the plan needs, and checks its digest over the very
// bytes that are used.
func readInput(path, name, pinned string, lines *[]string) ([]byte, error) {
	const most = 1 << 30
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if len(data) > most {
		return nil, fmt.Errorf("%s has more than %d bytes", path, most)
	}
	if got := batch.Digest(data); pinned != "" && pinned != setting.Unpinned && got != pinned {
		*lines = append(*lines, fmt.Sprintf("ENV_DRIFT: %s %s expected, %s realized", name, pinned, got))
	}
	return data, nil
}

// host is this node.
func host() preflight.Host { return preflight.Host{Root: "/", Getenv: os.Getenv} }

// readNode reads the node, with its devices where it has real ones.
func (a *attempt) readNode(ctx context.Context) fingerprint.Node {
	n := host().Node()
	n.Rank = a.job.rank
	switch {
	case a.spec.HardwareClass == emulated:
		if n.GPUsAllocated != nil {
			n.GPUSource = "slurm"
		}
		n.GPUError = "the hardware is emulated"
	case strings.HasPrefix(a.setting.Hardware.GPU, "cpu-"):
	case a.spec.Node.GPUHelper == "":
		n.GPUError = "the site has no sbench-gpu"
	default:
		gpus, err := a.gpuHelper().Snapshot(ctx)
		if err != nil {
			n.GPUError = err.Error()
			break
		}
		n.GPUSource, n.GPUs = "nvml", gpus
		a.applyClocks(ctx, n)
	}
	return n
}

// compare adds the items of a stage to the attempt's checks and fails where one
// refuses. Artefacts are named first: no node is to blame for them.
func (a *attempt) compare(stage fingerprint.Stage) error {
	items := fingerprint.Compare(a.setting, a.fingerprint, a.spec.HardwareClass, stage)
	if stage == fingerprint.StageEngine {
		expected := a.spec.Flags[a.run.SettingHash][a.fingerprint.Image.Digest]
		items = append(items, fingerprint.CompareFlags(expected, a.fingerprint.Engine.Flags)...)
	}
	slices.SortStableFunc(items, func(x, y fingerprint.Item) int { return classOrder(x) - classOrder(y) })
	f := &failure{class: lifecycle.ExitDriftNode}
	var names []string
	placement := true
	for _, i := range items {
		a.checks = append(a.checks, i.Check())
		if !i.Refuses() {
			continue
		}
		if i.Class == fingerprint.ClassArtefact {
			f.class = lifecycle.ExitDriftArtefact
		}
		f.reasons = append(f.reasons, i.Line())
		names = append(names, i.Name)
		placement = placement && i.IsPlacement()
		if i.Node != "" && !slices.Contains(f.blame, i.Node) {
			f.blame = append(f.blame, i.Node)
		}
	}
	if len(f.reasons) == 0 {
		return nil
	}
	if placement {
		f.blame = []string{} // Slurm's doing
	}
	f.signature = "drift " + strings.Join(slices.Compact(names), ", ")
	return f
}

func classOrder(i fingerprint.Item) int {
	if i.Class == fingerprint.ClassArtefact {
		return 0
	}
	return 1
}

// probe asks the image, before the engine starts, what software is in it.
func (a *attempt) probe(ctx context.Context, argv []string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	spec, err := a.command(argv)
	if err != nil {
		return err
	}
	out, stderr, exit, err := a.supervisor.Output(ctx, spec, 1<<20)
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("%v: %s", exit, stderr)
	}
	var report engine.Report
	if err == nil {
		report, err = engine.ParseReport(out)
	}
	if err != nil {
		// What is pinned and was not reported refuses by itself.
		a.log.Warn("the image does not say what is in it", "error", err)
		return nil
	}
	a.fingerprint.Engine.Version, a.fingerprint.Engine.Torch = report.Version, report.Torch
	a.fingerprint.Engine.CUDA, a.fingerprint.Engine.NCCL = report.CUDA, report.NCCL
	return nil
}

// identify asks the running engine what it is and compares what only it knows.
func (a *attempt) identify(ctx context.Context) error {
	others, err := a.alongside(ctx, verbIdentify, nil, a.identifyOwn)
	if err != nil {
		var f *failure
		if errors.As(err, &f) && f.class == lifecycle.ExitEngineDied && !f.outside && a.engineEnded(true) {
			return a.died("its identification")
		}
		return err
	}
	a.fingerprint.Nodes = append(a.fingerprint.Nodes[:1:1], others...)
	if err := a.compare(fingerprint.StageEngine); err != nil {
		if a.engineEnded(true) {
			return a.died("its identification") // a dead engine reports nothing
		}
		return err
	}
	a.verified = true
	return nil
}

// named has the path that the setting gives the checkpoint stand for that of a
// mirror's copy, which an engine on the host is started with: whence the bytes came
// is no difference of flags.
func named(flags map[string]string, copied, path string) map[string]string {
	if flags == nil || copied == path || copied == "" {
		return flags
	}
	out := make(map[string]string, len(flags))
	for name, value := range flags {
		out[name] = strings.ReplaceAll(value, copied, path)
	}
	return out
}

// identifyOwn asks the engine of this node, where it runs.
func (a *attempt) identifyOwn(ctx context.Context) error {
	a.noteSharedMemory()
	identity := engine.Ask(ctx, a.engine.adapter, a.engine.ready.BaseURL, logStart(a.logPath()))
	a.fingerprint.Engine.Flags = named(identity.Flags, a.artefacts.checkpoint.Path, a.setting.Model.Checkpoint.Path)
	reported := identity.Version
	switch known := a.fingerprint.Engine.Version; {
	case known == "":
		a.fingerprint.Engine.Version = reported
	case reported != "" && reported != known:
		// The engine that runs is not the one whose package metadata was read.
		a.fingerprint.Engine.Version = reported + " (running), " + known + " (installed)"
	}
	return a.identifyFiles(ctx)
}

// logStart is the beginning of the engine's log, where engines say what their
// options resolved to.
func logStart(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, 1<<20))
	return string(text)
}

// identifyFiles looks at what the engine's process was made of.
func (a *attempt) identifyFiles(ctx context.Context) error {
	if a.setting.Image.Kind == setting.ImageHost && a.engine != nil {
		if err := a.identifyProgram(ctx); err != nil {
			return err
		}
	}
	if err := a.unchanged(); err != nil {
		return &failure{
			class: lifecycle.ExitDriftArtefact, signature: "drift artefact changed", cause: err,
			reasons: []string{"ENV_DRIFT: unchanged artefacts expected, " + err.Error()},
		}
	}
	return nil
}

// identifyProgram checks that the process runs the very file that was hashed and
// lists the libraries it has loaded.
func (a *attempt) identifyProgram(ctx context.Context) error {
	pid := a.engine.tree.PID()
	exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	hashed, statErr := os.Stat(a.artefacts.program.Path)
	if err = errors.Join(err, statErr); err != nil {
		return fail(lifecycle.ExitEngineDied, "", fmt.Errorf("look at the engine's executable: %w", err))
	}
	if !os.SameFile(exe, hashed) && !isScript(a.artefacts.program.Path) {
		return &failure{
			class: lifecycle.ExitDriftArtefact, signature: "drift executable",
			reasons: []string{fmt.Sprintf("ENV_DRIFT: executable %s expected, another file runs", a.artefacts.program.Path)},
		}
	}
	files, err := preflight.MappedFiles(pid)
	if err != nil {
		return fail(lifecycle.ExitEngineDied, "", err)
	}
	for _, path := range files {
		library := fingerprint.Library{Name: filepath.Base(path), Path: path}
		if x, err := stage.Digest(ctx, path); err == nil {
			library.Digest = x.Digest
		}
		a.fingerprint.Image.Libraries = append(a.fingerprint.Image.Libraries, library)
	}
	return nil
}

func isScript(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var start [2]byte
	_, err = io.ReadFull(f, start[:])
	return err == nil && string(start[:]) == "#!"
}

// unchanged says whether any artefact was touched since it was hashed.
func (a *attempt) unchanged() error {
	x := a.artefacts
	errs := []error{x.checkpoint.Unchanged(), x.program.Unchanged()}
	if a.setting.Image.Kind == setting.ImageSIF {
		errs = append(errs, x.image.Unchanged())
	}
	return errors.Join(errs...)
}

// verifyAgain compares everything once more, while the engine still runs: what
// changed during the measurement makes it invalid.
func (a *attempt) verifyAgain(ctx context.Context) error {
	before := a.fingerprint
	after := before
	var own fingerprint.Node
	others, err := a.alongside(ctx, verbAgain, nil, func(ctx context.Context) (err error) {
		own, err = a.nodeAgain(ctx)
		return err
	})
	if err != nil {
		return err
	}
	after.Nodes = append([]fingerprint.Node{own}, others...)
	for _, i := range fingerprint.Compare(a.setting, after, a.spec.HardwareClass, fingerprint.StageNode) {
		if i.Refuses() {
			c := i.Check()
			c.Name, c.Kind, c.Reason = "changed "+c.Name, result.CheckHarness, "during the run: "+c.Reason
			a.checks = append(a.checks, c)
		}
	}
	a.checks = append(a.checks, fingerprint.Changes(a.setting, before, after, nil)...)
	c := result.Check{Name: "artefacts", Kind: result.CheckHarness, Verdict: result.VerdictPass, Reason: "image and checkpoint were not touched during the run"}
	if err := a.unchanged(); err != nil {
		c.Verdict, c.Reason = result.VerdictFail, err.Error()
	}
	a.checks = append(a.checks, c)
	return nil
}

// nodeAgain reads this node once more. The engine's own processes are on the
// devices now, and are no neighbours.
func (a *attempt) nodeAgain(ctx context.Context) (fingerprint.Node, error) {
	node := a.readNode(ctx)
	node.Env = a.fingerprint.Nodes[0].Env
	if a.engine == nil {
		return node, nil // this rank has none
	}
	pids, err := a.engine.tree.PIDs()
	if err != nil {
		return node, fail(lifecycle.ExitInternal, "", err)
	}
	withoutProcesses([]fingerprint.Node{node}, pids)
	return node, nil
}

func withoutProcesses(nodes []fingerprint.Node, pids []int) {
	for _, n := range nodes {
		if n.GPUs == nil {
			continue
		}
		for i := range n.GPUs.Devices {
			d := &n.GPUs.Devices[i]
			d.Processes = slices.DeleteFunc(d.Processes, func(p fingerprint.GPUProcess) bool { return slices.Contains(pids, p.PID) })
		}
	}
}

// fingerprintJSON is the fingerprint as it is stored.
func (a *attempt) fingerprintJSON() (json.RawMessage, error) { return json.Marshal(a.fingerprint) }
