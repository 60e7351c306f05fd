package engine

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"

	"sbench/internal/batch"
)

// Container runs a command inside a SIF by Apptainer or Singularity.
type Container struct {
	Program string   // path
	Args    []string // further options of exec
	Image   string
	Binds   []batch.Bind
	NVIDIA  bool // make the node's NVIDIA devices and driver libraries visible
	Env     map[string]string
}

// ErrNoContainerProgram says that the node cannot run images.
var ErrNoContainerProgram = errors.New("neither apptainer nor singularity is on this node's PATH")

// FindContainerProgram returns the path of the container program: configured, or
// else apptainer or singularity on PATH.
func FindContainerProgram(configured string) (string, error) {
	if configured != "" {
		path, err := exec.LookPath(configured)
		if err != nil {
			return "", fmt.Errorf("container program: %w", err)
		}
		return path, nil
	}
	for _, name := range []string{"apptainer", "singularity"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoContainerProgram
}

// Argv is the command line that runs argv inside the image. The container gets
// nothing of the node but what is listed: no home, no environment, a /tmp and
// a process namespace of its own.
func (c Container) Argv(argv []string) ([]string, error) {
	out := []string{c.Program, "exec"}
	if c.NVIDIA {
		out = append(out, "--nv")
	}
	out = append(out, "--containall", "--no-home")
	out = append(out, c.Args...)
	for _, b := range c.Binds {
		target := b.Target
		if target == "" {
			target = b.Source
		}
		if strings.ContainsAny(b.Source+target, ":,\n") {
			return nil, fmt.Errorf("bind %q to %q: the container program cannot take a colon, comma or line break in a path", b.Source, target)
		}
		bind := b.Source + ":" + target
		if b.ReadOnly {
			bind += ":ro"
		}
		out = append(out, "--bind", bind)
	}
	for _, k := range slices.Sorted(maps.Keys(c.Env)) {
		if plain(c.Env[k]) {
			out = append(out, "--env", k+"="+c.Env[k])
		}
	}
	return append(append(out, c.Image), argv...), nil
}

// Environ returns the variables of the container program's own environment that
// set variables inside. --env splits its value at commas and quotes, so that
// values with those travel here.
func (c Container) Environ() []string {
	var env []string
	for _, k := range slices.Sorted(maps.Keys(c.Env)) {
		if !plain(c.Env[k]) {
			env = append(env, "APPTAINERENV_"+k+"="+c.Env[k], "SINGULARITYENV_"+k+"="+c.Env[k])
		}
	}
	return env
}

func plain(value string) bool { return !strings.ContainsAny(value, ",\"\n\r") }
