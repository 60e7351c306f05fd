package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sbench/internal/result"
	"sbench/internal/runner/engine"
	"sbench/internal/setting"
)

const (
	packagesLimit   = 20 * time.Second
	packagesMost    = 4 << 20 // bytes of the list
	packageManagers = `
if command -v dpkg-query >/dev/null; then dpkg-query -W -f 'deb\t${Package}\t${Version}\n'; fi
if command -v rpm >/dev/null; then rpm -qa --qf 'rpm\t%{NAME}\t%{VERSION}-%{RELEASE}\n'; fi
if [ -r /lib/apk/db/installed ]; then
  while IFS=: read -r key value; do
    case $key in P) name=$value ;; V) printf 'apk\t%s\t%s\n' "$name" "$value" ;; esac
  done </lib/apk/db/installed
fi
for python in python3 python; do
  command -v "$python" >/dev/null || continue
  "$python" -c 'import importlib.metadata as m
for d in m.distributions(): print("python", d.metadata["Name"], d.version, sep="\t")'
  break
done
:
`
)

// listPackages asks what is installed in the image: its digest says that two runs
// had the same, and this says what it was. It comes after the measurement, and its
// failure is nothing that the measurement is judged by.
func (a *attempt) listPackages(ctx context.Context) {
	if a.setting.Image.Kind != setting.ImageSIF {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, packagesLimit)
	defer cancel()
	var err error
	if a.packages, err = a.installed(ctx); err != nil {
		a.log.Warn("the image's packages are not listed", "error", err)
	}
}

// writePackages comes last: the list is the first thing that a full disk costs.
func (a *attempt) writePackages() {
	if len(a.packages) == 0 {
		return
	}
	err := a.writer.WriteFile(result.PackagesFile, func(w io.Writer) error {
		_, err := io.WriteString(w, strings.Join(a.packages, ""))
		return err
	})
	if err != nil {
		a.log.Warn("write the image's packages", "error", err)
	}
}

func (a *attempt) installed(ctx context.Context) ([]string, error) {
	spec, err := a.command([]string{"sh", "-c", packageManagers})
	if err != nil {
		return nil, err
	}
	out, stderr, exit, err := a.supervisor.Output(ctx, spec, packagesMost)
	switch {
	case err != nil:
		return nil, err
	case exit.Code != 0 || exit.Signal != 0:
		return nil, fmt.Errorf("the image's shell ended with %v: %.300s", exit, engine.LastLine(stderr))
	}
	lines := slices.Collect(strings.Lines(strings.ToValidUTF8(string(out), "?")))
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.Count(l, "\t") != 2 || !strings.HasSuffix(l, "\n") })
	if len(lines) == 0 {
		return nil, errors.New("it has no package manager that is known")
	}
	slices.Sort(lines)
	return slices.Compact(lines), nil
}
