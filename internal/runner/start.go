package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sbench/internal/batch"
	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
	"sbench/internal/proc"
	"sbench/internal/runner/engine"
	"sbench/internal/runner/port"
	"sbench/internal/runner/preflight"
	"sbench/internal/setting"
)

// running is a started engine.
type running struct {
	adapter engine.Engine
	tree    *proc.Tree
	ready   engine.Ready
	shm     map[string]fileID // files of shared memory that its processes had
	// oomKills is how many processes of this step the kernel had killed, because
	// memory ran out, before the engine was started.
	oomKills *int64
}

// engineLogBytes bounds the engine's log in an attempt.
const engineLogBytes = 16 << 20

const loopback = "127.0.0.1"

// start starts the engine and waits until it has generated a token.
func (a *attempt) start(ctx context.Context) error {
	if a.reuse(ctx) {
		return nil
	}
	adapter, err := a.describeEngine(ctx)
	if err != nil {
		return err
	}
	a.splitCPUs()
	ctx, cancel := context.WithTimeout(ctx, orDefault(a.spec.Node.Deadlines.EngineStart, 20*time.Minute))
	defer cancel()
	if err := a.startOthers(ctx, adapter); err != nil {
		return err
	}
	err = a.startOnce(ctx, adapter)
	if errors.Is(err, engine.ErrForeign) && a.order == nil {
		// Somebody was faster to take the free port. Once more, with another one.
		a.log.Warn("the engine's port was taken by another process", "error", err)
		err = errors.Join(a.engine.tree.Stop(a.stopGrace()), os.Remove(a.logPath()))
		if err == nil {
			err = a.startOnce(ctx, adapter)
		}
	}
	var f *failure
	if err != nil && !errors.As(err, &f) {
		return a.startFailure(err)
	}
	return err
}

// describeEngine finds out what this node starts the engine with, and what the
// image says is in it.
func (a *attempt) describeEngine(ctx context.Context) (engine.Engine, error) {
	adapter, err := engine.New(a.setting.Engine.Kind)
	if err != nil {
		return nil, fail(lifecycle.ExitSpec, "engine kind", err)
	}
	if err := a.findContainer(ctx); err != nil {
		return nil, err
	}
	a.fingerprint.Engine.Kind = string(a.setting.Engine.Kind)
	a.fingerprint.Nodes[0].Env = preflight.RelevantEnv(a.engineEnv())
	if argv := adapter.Probe(a.params(0)); argv != nil && a.setting.Image.Kind == setting.ImageSIF {
		if err := a.probe(ctx, argv); err != nil {
			return nil, err
		}
	}
	return adapter, nil
}

func (a *attempt) startOnce(ctx context.Context, adapter engine.Engine) error {
	port, err := port.Free(loopback)
	if err != nil {
		return fail(lifecycle.ExitInternal, "", err)
	}
	if err := a.launch(adapter, port); err != nil {
		return err
	}
	tree := a.engine.tree
	a.engine.ready, err = engine.WaitReady(ctx, engine.Running{
		Host: loopback, Port: port, Endpoint: a.setting.Workload.Request.Endpoint, Model: a.setting.Model.Name,
		Done: tree.Done(), Owns: tree.OwnsPort,
	})
	return err
}

// launch starts this node's engine process.
func (a *attempt) launch(adapter engine.Engine, port int) error {
	argv, err := adapter.Argv(a.params(port))
	if err != nil {
		return fail(lifecycle.ExitSpec, "engine argv", err)
	}
	a.fingerprint.Engine.Argv = argv
	spec, err := a.command(argv)
	if err != nil {
		return err
	}
	spec.Log, spec.LogLimit = a.logPath(), engineLogBytes
	spec.Orphans = true
	a.log.Info("start engine", "argv", strings.Join(spec.Argv, " "))
	oomKills := host().OOMKills()
	tree, err := a.supervisor.Start(spec)
	if err != nil {
		return fail(lifecycle.ExitEngineStart, "not started", fmt.Errorf("ENGINE_START: %w", err))
	}
	a.engine = &running{adapter: adapter, tree: tree, shm: map[string]fileID{}, oomKills: oomKills}
	return nil
}

// startFailure says why the engine did not become ready.
func (a *attempt) startFailure(err error) error {
	how := "not ready in time"
	if errors.Is(err, engine.ErrEnded) {
		exit := a.engine.tree.Exit()
		if why := engine.ContainerFault(a.logTail(), exit.Code); why != "" && a.setting.Image.Kind == setting.ImageSIF {
			return &failure{
				class: lifecycle.ExitDriftNode, cause: err, signature: "container",
				reasons: []string{"ENV_DRIFT: a node that can run the image expected: " + why},
			}
		}
		how = exit.String()
		err = fmt.Errorf("%w (%s)", err, how)
	}
	how += a.outOfMemory()
	f := engine.ReadFailure(a.logTail(), how)
	reasons := []string{fmt.Sprintf("ENGINE_START: %v%s", err, a.outOfMemory())}
	if f.Line != "" {
		reasons[0] += ": " + f.Line
	}
	return &failure{class: lifecycle.ExitEngineStart, reasons: append(reasons, a.tailLines()...), signature: "start " + f.Signature, cause: err}
}

// died says why the engine ended by itself.
func (a *attempt) died(phase string) error {
	how := a.engine.tree.Exit().String() + a.outOfMemory()
	f := engine.ReadFailure(a.logTail(), how)
	reason := fmt.Sprintf("ENGINE_DIED: during %s (%s)", phase, how)
	if f.Line != "" {
		reason += ": " + f.Line
	}
	return &failure{class: lifecycle.ExitEngineDied, reasons: append([]string{reason}, a.tailLines()...), signature: "died " + f.Signature}
}

// outOfMemory says that the kernel killed a process of this step since the engine
// was started, because memory ran out; "" where it did not, or does not say.
func (a *attempt) outOfMemory() string {
	now := host().OOMKills()
	if before := a.engine.oomKills; before != nil && now != nil && *now > *before {
		return ", " + engine.KilledForMemory + " a process of this step"
	}
	return ""
}

// logTail is the end of the engine's log. An engine that ended may have written
// lines that are still on their way.
func (a *attempt) logTail() string {
	select {
	case <-a.engine.tree.Done():
		if err := a.engine.tree.Stop(a.stopGrace()); err != nil {
			a.log.Warn("clean up after the engine", "error", err)
		}
	default:
	}
	return a.engine.tree.Tail(16 << 10)
}

// tailLines are the last lines of the engine's log, for people.
func (a *attempt) tailLines() []string { return tailLines(a.engine.tree.Tail(4 << 10)) }

func tailLines(tail string) []string {
	lines := strings.Split(strings.TrimSpace(tail), "\n")
	lines = lines[max(0, len(lines)-10):]
	for i, line := range lines {
		lines[i] = "engine: " + strings.ToValidUTF8(strings.Map(printable, line), "\uFFFD")
	}
	return lines
}

func printable(r rune) rune {
	if r < ' ' || r == 0x7f {
		return ' '
	}
	return r
}

// findContainer looks for the program that runs images.
func (a *attempt) findContainer(ctx context.Context) error {
	if a.setting.Image.Kind != setting.ImageSIF {
		return nil
	}
	program, err := engine.FindContainerProgram(a.spec.Node.Apptainer)
	if err != nil {
		return fail(lifecycle.ExitDriftNode, "no container program", fmt.Errorf("ENV_DRIFT: a container program expected: %w", err))
	}
	a.fingerprint.Container = fingerprint.Container{Program: program}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, _, exit, err := a.supervisor.Output(ctx, proc.Spec{Argv: []string{program, "--version"}, Env: a.hostEnv()}, 4<<10)
	if err == nil && exit.Code == 0 {
		a.fingerprint.Container.Version = strings.TrimSpace(string(out))
	}
	return a.checkContainer(ctx, program)
}

// checkContainer refuses a node that cannot run images, before the engine's own
// deadline is spent on it, and an image that is not signed as the site wants it.
func (a *attempt) checkContainer(ctx context.Context, program string) error {
	config, _, _, err := a.supervisor.Output(ctx, proc.Spec{Argv: []string{program, "buildcfg"}, Env: a.hostEnv()}, 64<<10)
	if err != nil {
		config = nil // it is found out by running it
	}
	a.fingerprint.Container.Variant, err = engine.ReadNode("/", string(config), os.Geteuid()).Variant(a.spec.Node.ContainerArgs)
	if err != nil {
		return fail(lifecycle.ExitDriftNode, "container", fmt.Errorf("ENV_DRIFT: a node that can run the image expected: %w", err))
	}
	key := a.spec.Node.VerifyKey
	if key == "" {
		return nil
	}
	out, stderr, exit, err := a.supervisor.Output(ctx, proc.Spec{Argv: []string{program, "verify", "--key", key, a.artefacts.image.Path}, Env: a.hostEnv()}, 64<<10)
	if err != nil || exit.Code != 0 {
		why := engine.LastLine(stderr)
		switch {
		case err != nil:
			why = err.Error()
		case why == "":
			why = fmt.Sprintf("%v %s", exit, engine.LastLine(string(out)))
		}
		return fail(lifecycle.ExitDriftArtefact, "signature", fmt.Errorf("ENV_DRIFT: an image signed with %s expected: %s", key, why))
	}
	a.fingerprint.Container.Signature = "verified with " + key
	return nil
}

// params are what the adapter makes a command line of.
func (a *attempt) params(port int) engine.Params {
	p := engine.Params{Setting: a.setting, Host: loopback, Port: port, Model: a.artefacts.checkpoint.Path, Gang: a.order}
	if a.setting.Image.Kind == setting.ImageHost {
		p.Program = a.artefacts.program.Path
		return p
	}
	if p.Model != "" {
		p.Model = a.modelBind().Target
	}
	return p
}

// modelBind is where the checkpoint appears in the container: at a fixed place,
// so that its path on the node cannot matter, unless links of it end elsewhere.
func (a *attempt) modelBind() batch.Bind {
	x := a.artefacts.checkpoint
	b := batch.Bind{Source: x.Path, Target: "/sbench/model", ReadOnly: true}
	switch {
	case len(x.Outside) > 0:
		b.Target = x.Path
	case !x.IsDir:
		b.Target = "/sbench/" + filepath.Base(x.Path)
	}
	return b
}

// command is how argv is run where the engine runs: in the image, or on the host.
// more is what an image sees besides.
func (a *attempt) command(argv []string, more ...batch.Bind) (proc.Spec, error) {
	env := a.engineEnv()
	spec := proc.Spec{Dir: a.dirs.temp, CPUs: a.engineCPUs()}
	if a.setting.Image.Kind == setting.ImageHost {
		spec.Argv = argv
		for _, k := range slices.Sorted(maps.Keys(env)) {
			spec.Env = append(spec.Env, k+"="+env[k])
		}
		return spec, nil
	}
	tmp := filepath.Join(a.dirs.temp, "tmp")
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return spec, fail(lifecycle.ExitStaging, "", fmt.Errorf("make scratch: %w", err))
	}
	c := engine.Container{
		Program: a.fingerprint.Container.Program, Args: a.spec.Node.ContainerArgs, Image: a.artefacts.image.Path, Env: env,
		NVIDIA: a.hasNVIDIA(), Binds: []batch.Bind{{Source: tmp, Target: "/tmp"}},
	}
	if a.artefacts.checkpoint.Path != "" {
		c.Binds = append(c.Binds, a.modelBind())
		for _, dir := range a.artefacts.checkpoint.Outside {
			c.Binds = append(c.Binds, batch.Bind{Source: dir, ReadOnly: true})
		}
	}
	if c.NVIDIA || a.spec.Node.MinSHM > 0 {
		for _, device := range []string{"/dev/shm", "/dev/infiniband"} {
			if _, err := os.Stat(device); err == nil {
				c.Binds = append(c.Binds, batch.Bind{Source: device})
			}
		}
	}
	c.Binds = append(append(c.Binds, a.spec.Node.Binds...), more...)
	var err error
	if spec.Argv, err = c.Argv(argv); err != nil {
		return spec, fail(lifecycle.ExitSpec, "container argv", err)
	}
	spec.Env = append(a.hostEnv(), c.Environ()...)
	return spec, nil
}

// hasNVIDIA reports whether the engine gets the node's NVIDIA devices.
func (a *attempt) hasNVIDIA() bool {
	return a.spec.HardwareClass != emulated && !strings.HasPrefix(a.setting.Hardware.GPU, "cpu-")
}

// devices are the variables by which Slurm says which devices are ours.
func devices() []string {
	return []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"}
}

// engineEnv is the whole environment of the engine: nothing of the job's leaks
// but what the site passes on and what names the devices.
func (a *attempt) engineEnv() map[string]string {
	env := map[string]string{"LANG": "C.UTF-8", "TMPDIR": "/tmp", "XDG_CACHE_HOME": "/tmp/.cache"}
	if a.setting.Image.Kind == setting.ImageHost {
		env = map[string]string{
			"LANG": "C.UTF-8", "PATH": os.Getenv("PATH"), "HOME": a.dirs.temp, "TMPDIR": a.dirs.temp,
		}
	}
	for _, name := range append(devices(), a.spec.Node.PassEnv...) {
		if value, ok := os.LookupEnv(name); ok {
			env[name] = value
		}
	}
	maps.Copy(env, a.spec.Node.Env)
	maps.Copy(env, a.setting.Engine.Env)
	return env
}

// hostEnv is the environment of the container program itself.
func (a *attempt) hostEnv() []string {
	env := []string{"LANG=C.UTF-8", "TMPDIR=" + a.dirs.temp, "APPTAINER_TMPDIR=" + a.dirs.temp, "SINGULARITY_TMPDIR=" + a.dirs.temp}
	for _, name := range []string{"PATH", "HOME", "USER", "LOGNAME", "XDG_RUNTIME_DIR", "LD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}
