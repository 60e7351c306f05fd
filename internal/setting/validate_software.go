package setting

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

func (v *validator) software() {
	s := v.s
	v.required("model.name", s.Model.Name, "")
	// A registered checkpoint or image is found by its digest.
	if s.Model.Checkpoint.Path == "" && s.Model.Checkpoint.Digest == Unpinned {
		v.fail("model.checkpoint.digest", "give model.checkpoint.path, or the digest of a registered checkpoint", "is %s without a path", Unpinned)
	}
	v.image()
	if s.Engine.Kind == "" {
		v.required("engine.kind", "", "one of "+strings.Join(words(EngineVLLM, EngineSGLang, EngineTRTLLM, EngineLlamaCpp, EngineCommand), ", "))
	}
	if s.Engine.Kind != EngineCommand && s.Engine.Kind != "" && s.Model.Checkpoint == (Checkpoint{}) {
		v.fail("model.checkpoint.path", "or model.checkpoint.digest of a registered one", "is missing: engine %s needs weights", s.Engine.Kind)
	}
	v.command()
	v.args()
	v.env()
}

// registryForm is a reference to an image in a registry.
var registryForm = regexp.MustCompile(`^(docker|oci|oras|library|shub|https?)://`)

func (v *validator) image() {
	s := v.s
	switch path := s.Image.Path; {
	case path == "" && s.Image.Kind == ImageSIF && s.Image.Digest != "" && s.Image.Digest != Unpinned:
		// A registered image is found by its digest.
	case path == "":
		v.required("image.path", "", "")
	case registryForm.MatchString(path):
		why := "by a tag, which can move"
		if strings.Contains(path, "@sha256:") {
			why = "in a registry, which may be out of reach when the job starts"
		}
		v.fail("image.path", "pull it once (apptainer pull image.sif REFERENCE), and pin the file with image.digest",
			"names an image %s: %q", why, path)
	case s.Image.Kind == ImageSIF && strings.HasSuffix(path, "/"):
		v.fail("image.path", "build a file from it: apptainer build image.sif FOLDER",
			"names a sandbox folder, whose content can change while the sweep runs: %q", path)
	}
	if kind := s.Engine.Kind; s.Hardware.Nodes > 1 && (kind == EngineLlamaCpp || kind == EngineTRTLLM) {
		v.fault("vllm, sglang and command span nodes", []string{"engine.kind", "hardware.nodes"}, "engine.kind %s runs on one node only", kind)
	}
}

func (v *validator) command() {
	s := v.s
	if s.Engine.Kind != EngineCommand {
		return
	}
	if len(s.Engine.Command) > MaxEntries {
		v.fail("engine.command", "", "has more than %d arguments", MaxEntries)
	}
	for i, arg := range s.Engine.Command {
		if problem := CheckText(arg); problem != "" {
			v.fail("engine.command", "", "argument %d %s", i+1, problem)
		}
	}
	if !strings.Contains(strings.Join(s.Engine.Command, " "), "{port}") {
		v.fail("engine.command", "write {port} where the engine is told its port", "does not use {port}")
	}
	if len(s.Engine.Args) > 0 {
		v.fail("engine.args", "write them in engine.command", "has no meaning with engine.kind command")
	}
}

// ownedArg reports whether an engine's adapter sets the option itself, and the
// axis that it comes from; "" where no axis is behind it.
func ownedArg(kind EngineKind, name string) (axis string, owned bool) {
	switch name {
	case "host", "port":
		return "", true
	case "model", "model-path":
		return "model.checkpoint.path", true
	case "m":
		return "model.checkpoint.path", kind == EngineLlamaCpp
	case "served-model-name":
		return "model.name", kind == EngineVLLM || kind == EngineSGLang
	}
	if kind == EngineLlamaCpp || kind == EngineCommand {
		return "", false
	}
	switch strings.ReplaceAll(name, "_", "-") {
	case "tensor-parallel-size", "tp-size", "tp":
		return "parallel.tensor", true
	case "pipeline-parallel-size", "pp-size", "pp":
		return "parallel.pipeline", true
	case "data-parallel-size", "dp-size", "dp":
		return "parallel.data", true
	case "expert-parallel-size", "ep-size", "ep", "enable-expert-parallel":
		return "parallel.expert", true
	}
	return "", false
}

func (v *validator) args() {
	s := v.s
	if len(s.Engine.Args) > MaxEntries {
		v.fail("engine.args", "", "has more than %d entries", MaxEntries)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.Engine.Args)) {
		key := "engine.args." + name
		if len(name) > 100 || !argForm.MatchString(name) {
			hint := ""
			if trimmed := strings.TrimLeft(name, "-"); trimmed != name {
				hint = fmt.Sprintf("write it without dashes: %s", trimmed)
			}
			v.fault(hint, []string{key}, "%q is not the name of an option", name)
			continue
		}
		if axis, ok := ownedArg(s.Engine.Kind, name); ok {
			hint := "leave it out"
			if axis != "" {
				hint = "use " + axis
			}
			v.fail(key, hint, "is set by sbench itself")
		}
		if problem := CheckText(s.Engine.Args[name]); problem != "" {
			v.fail(key, "", "%s", problem)
		}
	}
}

var secretForm = regexp.MustCompile(`(?i)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIALS?)$`)

func (v *validator) env() {
	s := v.s
	if len(s.Engine.Env) > MaxEntries {
		v.fail("engine.env", "", "has more than %d entries", MaxEntries)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.Engine.Env)) {
		key := "engine.env." + name
		switch {
		case len(name) > 100 || !envForm.MatchString(name):
			v.fault("", []string{key}, "%q is not the name of an environment variable", name)
			continue
		case secretForm.MatchString(name):
			v.fail(key, "name a file with the secret in the site file (secrets)", "looks like a secret, which must not be in a sweep file")
			v.faults[len(v.faults)-1].Secret = true
		case ownedVariable(name):
			v.fail(key, "leave it out", "is set by Slurm, the container or sbench itself")
		}
		if problem := CheckText(s.Engine.Env[name]); problem != "" {
			v.fail(key, "", "%s", problem)
		}
	}
}

// ownedVariable reports whether an environment variable is not the user's to
// set: those that place the run, and those that load code into the container
// program before the image is entered.
func ownedVariable(name string) bool {
	for _, prefix := range []string{"SLURM_", "SBATCH_", "SRUN_", "SBENCH_", "APPTAINER", "SINGULARITY", "LD_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return slices.Contains([]string{"PATH", "HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}, name)
}
