package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sbench/internal/batch"
	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/seal"
	"sbench/internal/setting"
)

// inFakeContainer runs what is in the "image" on the host, with nothing on its PATH
// but a shell and the programs that are given.
func inFakeContainer(t *testing.T, programs map[string]string) func(*batch.Spec, *setting.Setting) {
	t.Helper()
	bin := t.TempDir()
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if programs != nil {
		if err := os.Symlink("/bin/sh", filepath.Join(bin, "sh")); err != nil {
			t.Fatal(err)
		}
	}
	return func(b *batch.Spec, s *setting.Setting) {
		b.Node.Apptainer = filepath.Join(t.TempDir(), "apptainer")
		text := `#!/bin/sh
[ "$1" = exec ] || { echo "apptainer version 1.3.4"; exit 0; }
while :; do
  case $1 in
  *.sif) break ;;
  --env) export "$2" && shift 2 ;;
  --bind) shift 2 ;;
  *) shift ;;
  esac
done
shift
PATH=` + bin + `
exec "$@"
`
		if err := os.WriteFile(b.Node.Apptainer, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		s.Engine.Command = append([]string{s.Image.Path}, s.Engine.Command...)
		s.Image.Kind = setting.ImageSIF
	}
}

func TestRun_Packages(t *testing.T) {
	for name, tt := range map[string]struct {
		programs map[string]string
		want     string
	}{
		"two managers": {map[string]string{
			"dpkg-query": "#!/bin/sh\nprintf 'deb\\tzlib1g\\t1:1.2.13\\ndeb\\tbash\\t5.2\\nnonsense\\ndeb\\tbash\\t5.2\\ndeb\\tcut\\n'\n",
			"python3":    "#!/bin/sh\nprintf 'python\\tvllm\\t0.11.0\\n'\n",
		}, "deb\tbash\t5.2\ndeb\tzlib1g\t1:1.2.13\npython\tvllm\t0.11.0\n"},
		"one that fails":     {map[string]string{"rpm": "#!/bin/sh\necho broken >&2; exit 1\n"}, ""},
		"no shell":           {nil, ""},
		"no manager's tools": {map[string]string{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat("/lib/apk/db/installed"); err == nil && tt.want == "" {
				t.Skip("the host's own packages would be listed")
			}
			b := newBench(t, inFakeContainer(t, tt.programs))
			code, out := b.run()
			m := b.sealed()
			b.nothingLeft()
			if m.ExitClass != lifecycle.ExitMeasured && m.ExitClass != lifecycle.ExitInvalid || code != m.ExitClass.Code() {
				t.Fatalf("exit status %d, sealed %s: %q\n%s", code, m.ExitClass, m.Reasons, out)
			}
			s, err := seal.Open(b.attemptDir(), seal.DefaultLimits())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			data, err := s.Read(result.PackagesFile)
			if got := string(data); got != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("got %q, %v\n%s", got, err, out)
			}
			if tt.want == "" && !strings.Contains(out, "the image's packages are not listed") {
				t.Errorf("nobody says why they are not listed:\n%s", out)
			}
		})
	}
}
