package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "sbench/"

// layer orders the packages: an import must go to a lower layer, or sideways
// where sideways says so.
type layer int

const (
	foundation layer = iota
	domain
	adapter
	node
	service
	program
	testkit
)

// sideways are the layers whose packages may import one another (the compiler
// forbids cycles).
var sideways = map[layer]bool{foundation: true, domain: true, node: true, testkit: true}

var layers = map[string]layer{
	"canon": foundation, "unit": foundation, "diag": foundation, "version": foundation,

	"setting": domain, "strictyaml": domain, "sweep": domain, "site": domain, "lifecycle": domain, "fingerprint": domain,
	"batch": domain, "workload": domain, "result": domain, "metrics": domain, "stats": domain,
	"schedule": domain, "aggregate": domain, "compare": domain, "regress": domain, "cost": domain, "plan": domain, "reuse": domain,
	"quality": domain,

	"slurm": adapter, "jobscript": adapter, "store": adapter, "resultfile": adapter, "bundle": adapter, "seal": adapter, "spool": adapter,
	"remote": adapter, "auth": adapter, "api": adapter, "sse": adapter, "proc": adapter, "mail": adapter, "nvml": adapter,

	"runner/preflight": node, "runner/port": node, "runner/stage": node, "runner/engine": node, "runner/gpu": node,
	"runner/loadgen": node, "runner/audit": node, "runner/gang": node, "runner/evaluate": node,

	"submit": service, "track": service, "collect": service, "cron": service, "judge": service, "notify": service, "sitecheck": service, "web": service,
	"runner": service, "sim": service, "devcluster": service, "bench": service,

	"daemon": program, "cli": program,

	"pgtest": testkit, "slurmtest": testkit, "mungetest": testkit, "remotetest": testkit, "archtest": testkit,
}

// forbiddenInDomain keeps the domain pure: same input, same output.
var forbiddenInDomain = []string{"os", "os/exec", "net", "net/http", "context", "log", "log/slog", "math/rand"}

// forbiddenIn lists what a binary must not link, by import path prefix.
var forbiddenIn = map[string][]string{
	"sbench-runner": {
		"github.com/jackc/pgx", "github.com/spf13/cobra", "github.com/NVIDIA/go-nvml", "runtime/cgo",
		module + "internal/store", module + "internal/slurm", module + "internal/api", module + "internal/web", module + "internal/auth",
	},
	"sbench":     {"github.com/jackc/pgx", "github.com/pkg/sftp", "github.com/NVIDIA/go-nvml", module + "internal/store", module + "internal/slurm"},
	"sbenchd":    {"github.com/spf13/cobra", "github.com/NVIDIA/go-nvml"},
	"sbench-sim": {"github.com/jackc/pgx", "github.com/spf13/cobra", "github.com/NVIDIA/go-nvml", "runtime/cgo"},
}

// drawers are names that say nothing about what is inside.
var drawers = []string{"util", "utils", "common", "helpers", "types", "models", "base", "misc", "shared"}

type pkg struct {
	ImportPath, Dir            string
	GoFiles                    []string
	Imports, TestImports, Deps []string
}

// list runs go list with CGO_ENABLED as the binaries are built.
func list(t *testing.T, cgo string, args ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-e", "-json=ImportPath,Dir,GoFiles,Imports,TestImports,Deps"}, args...)...)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED="+cgo)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	var pkgs []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func internalName(importPath string) (string, bool) {
	return strings.CutPrefix(importPath, module+"internal/")
}

func TestLayers(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "1", module+"internal/...") {
		name, _ := internalName(p.ImportPath)
		from, known := layers[name]
		if !known {
			t.Errorf("package %s has no layer: add it to layers here and to docs/architecture.md", p.ImportPath)
			continue
		}
		if slices.Contains(drawers, path.Base(name)) {
			t.Errorf("package %s: a name of this kind says nothing about what is inside", p.ImportPath)
		}
		for _, imp := range p.Imports {
			if from == domain && slices.Contains(forbiddenInDomain, imp) {
				t.Errorf("domain package %s imports %s: the domain is pure", name, imp)
			}
			to, ok := internalName(imp)
			if !ok {
				if from == foundation && strings.Contains(strings.Split(imp, "/")[0], ".") {
					t.Errorf("foundation package %s imports %s: only the standard library is allowed", name, imp)
				}
				continue
			}
			switch toLayer := layers[to]; {
			case toLayer == testkit && from != testkit:
				t.Errorf("%s links the test kit %s", name, to)
			case toLayer > from:
				t.Errorf("%s imports %s, which is in a layer above", name, to)
			case toLayer == from && !sideways[from]:
				t.Errorf("%s imports %s: packages of this layer do not import one another", name, to)
			}
		}
	}
}

func TestBinaryClosures(t *testing.T) {
	t.Parallel()
	for binary, forbidden := range forbiddenIn {
		cgo := "0"
		for _, p := range list(t, cgo, module+"cmd/"+binary) {
			for _, dep := range p.Deps {
				for _, f := range forbidden {
					if dep == f || strings.HasPrefix(dep, f+"/") {
						t.Errorf("%s links %s", binary, dep)
					}
				}
			}
		}
	}
}

// TestArchitecturePage: docs/architecture.md lists every package and no other.
func TestArchitecturePage(t *testing.T) {
	t.Parallel()
	page := readFile(t, "../../docs/architecture.md")
	for name := range layers {
		exists := dirExists(filepath.Join("..", filepath.FromSlash(name)))
		listed := strings.Contains(page, "| `"+name+"` |")
		if exists != listed {
			t.Errorf("package %s: exists %v, listed in docs/architecture.md %v", name, exists, listed)
		}
	}
}

// TestPackageComments: every package says in its own words what it is for.
func TestPackageComments(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "1", module+"internal/...", module+"cmd/...") {
		documented := len(p.GoFiles) == 0
		for _, f := range p.GoFiles {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, f), nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Fatal(err)
			}
			documented = documented || file.Doc != nil
		}
		if !documented {
			t.Errorf("package %s has no package comment", p.ImportPath)
		}
	}
}

// TestOnlyMainExits: a library that ends the process skips every clean-up.
func TestOnlyMainExits(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "1", module+"internal/...") {
		for _, f := range p.GoFiles {
			text := readFile(t, filepath.Join(p.Dir, f))
			for _, call := range []string{"os.Exit(", "log.Fatal", "syscall.Exit("} {
				if strings.Contains(text, call) {
					t.Errorf("%s: %s: only main ends the process", filepath.Join(p.ImportPath, f), call)
				}
			}
		}
	}
}
