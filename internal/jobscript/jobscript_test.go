package jobscript

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func job() Job {
	const token = "sb-abcdefghij2345672345"
	return Job{
		Name: Name("nightly", token), Token: token, Comment: Comment(token, 17, "alice", ""),
		Tasks: 3, Nodes: 1, TimeLimit: 30 * time.Minute, Grace: time.Minute,
		Dir: "/shared/spool/batches/" + token, Digest: "sha256:" + strings.Repeat("a", 64),
		TaskDigest: "sha256:" + strings.Repeat("b", 64), Programs: "/shared/spool/bin/1234",
	}
}

func load(t testing.TB) *Templates {
	t.Helper()
	all, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func render(t *testing.T, j Job) []byte {
	t.Helper()
	script, err := load(t).Array(j)
	if err != nil {
		t.Fatal(err)
	}
	return script
}

// shellcheck fails the test where the program is missing: rendered scripts are
// never unchecked.
func shellcheck(t *testing.T, script []byte) {
	t.Helper()
	cmd := exec.Command("shellcheck", "-")
	cmd.Stdin = bytes.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("shellcheck: %v\n%s\n%s", err, out, script)
	}
}

func TestArray_Golden(t *testing.T) {
	minimal := job()
	node := job()
	node.StepGRES, node.Memory, node.Requeue = "gpu:h100:4", "0", true
	node.Options = []Option{{"mail-type", "NONE"}, {"overcommit", ""}}
	node.GRES, node.Exclusive, node.Partition, node.Account, node.QOS = "gpu:h100:8", true, "gpu", "ml", "normal"
	node.Constraint, node.Switches, node.Nodes, node.Throttle, node.Exclude = "h100&[isl1|isl2]", 1, 2, 4, "gpu3,gpu4"
	node.WCKey, node.Reservation, node.Nice, node.NodeList = "bench", "maint", 100, "gpu[1-2]"
	node.Dependency = "afterok:12:13_4,singleton"
	gpu := job()
	gpu.GRES, gpu.StepGRES, gpu.CPUs, gpu.Memory, gpu.Tasks, gpu.Partition = "gpu:l4:1", "gpu:l4:1", 8, "64000M", 1, "l4"
	gpu.Dir = "/shared/the spool/ünïcode/" + gpu.Token
	copacked := gpu
	copacked.OwnUser, copacked.Dir = true, minimal.Dir
	gang := job()
	gang.GRES, gang.StepGRES, gang.Nodes, gang.Switches, gang.Exclusive, gang.Memory = "gpu:h100:8", "gpu:h100:8", 4, 1, true, "0"
	for name, j := range map[string]Job{"minimal": minimal, "node": node, "gpu": gpu, "copacked": copacked, "gang": gang} {
		script := render(t, j)
		shellcheck(t, script)
		golden := filepath.Join("testdata", name+".sbatch")
		if *update {
			if err := os.WriteFile(golden, script, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(script)); diff != "" {
			t.Errorf("%s (-want +got; -update rewrites): %s", name, diff)
		}
	}
}

func TestTask_Shellcheck(t *testing.T) {
	script, err := os.ReadFile("../../sbatch/task.sh")
	if err != nil {
		t.Fatal(err)
	}
	shellcheck(t, script)
}

// hostile values are refused or inert, wherever they stand.
var hostile = []string{
	"a b", "a\nb", "a\n#SBATCH --uid=0", "$(touch x)", "`touch x`", "a;b", "a'b", `a"b`, `a\b`, "a#b", "--uid=0", "-x", "a\x00b", "a\rb", "\xff",
	"ünï", "a%b", "../../etc/passwd", "a,b", "a|b", "a&b", "a=b", "'; rm -rf / #", strings.Repeat("x", 5000),
}

func TestArray_HostileValues(t *testing.T) {
	all := load(t)
	plain := string(render(t, job()))
	for _, v := range hostile {
		for field, set := range map[string]func(*Job){
			"Partition": func(j *Job) { j.Partition = v }, "Account": func(j *Job) { j.Account = v }, "QOS": func(j *Job) { j.QOS = v },
			"WCKey": func(j *Job) { j.WCKey = v }, "Reservation": func(j *Job) { j.Reservation = v }, "Dependency": func(j *Job) { j.Dependency = v },
			"GRES": func(j *Job) { j.GRES = v }, "Constraint": func(j *Job) { j.Constraint = v }, "NodeList": func(j *Job) { j.NodeList = v },
			"Exclude": func(j *Job) { j.Exclude = v }, "Dir": func(j *Job) { j.Dir = "/spool/" + v }, "Digest": func(j *Job) { j.Digest = v },
			"TaskDigest": func(j *Job) { j.TaskDigest = v },
			"Programs":   func(j *Job) { j.Programs = v }, "Token": func(j *Job) { j.Token = v }, "Comment": func(j *Job) { j.Comment = v },
			"Name":   func(j *Job) { j.Name = Name(v, j.Token) },
			"Memory": func(j *Job) { j.Memory = v }, "StepGRES": func(j *Job) { j.StepGRES = v },
			"Options": func(j *Job) { j.Options = []Option{{v, "x"}} }, "value": func(j *Job) { j.Options = []Option{{"mail-type", v}} },
		} {
			j := job()
			set(&j)
			script, err := all.Array(j)
			if err != nil {
				continue
			}
			checkInert(t, field, v, plain, string(script))
		}
	}
}

// checkInert: the script has the directives of the plain one, at most one more,
// and the shell executes the same words.
func checkInert(t *testing.T, field, value, plain, script string) {
	t.Helper()
	count := func(s string) (directives, exports, other int) {
		for line := range strings.Lines(s) {
			switch {
			case strings.HasPrefix(line, "#SBATCH "):
				directives++
				if strings.Count(line, `"`)%2 != 0 || strings.ContainsAny(line, "`\\'$") {
					t.Errorf("%s %q: %s", field, value, line)
				}
			case strings.HasPrefix(line, "export "):
				exports++
			default:
				other++
			}
		}
		return directives, exports, other
	}
	d0, e0, o0 := count(plain)
	d1, e1, o1 := count(script)
	if d1 < d0 || d1 > d0+1 || e0 != e1 || o0 != o1 {
		t.Errorf("%s %q changes the script's structure:\n%s", field, value, script)
	}
	// What the shell executes follows the directives and the empty line.
	if _, body, _ := strings.Cut(script, "\n\n"); !strings.HasSuffix(plain, body) {
		shellcheck(t, []byte(script))
	}
}

// TestShell_RoundTrip: the shell itself reads back what was quoted.
func TestShell_RoundTrip(t *testing.T) {
	var script strings.Builder
	var want []string
	for _, v := range append(hostile, "", " ", "*", "~", "!x", "{a,b}", "$HOME", "a''b") {
		q, err := shell(v)
		if err != nil {
			continue
		}
		script.WriteString("printf '%s\\0' " + q + "\n")
		want = append(want, v)
	}
	out, err := exec.Command("/bin/bash", "-c", script.String()).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestQuoting_NeverLeavesALine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.String().Draw(t, "value")
		for name, f := range quoting {
			quote, ok := f.(func(string) (string, error))
			if !ok {
				if name != "text" {
					continue
				}
				quote = func(v string) (string, error) { return text(v), nil }
			}
			q, err := quote(v)
			if err == nil && strings.ContainsAny(q, "\n\r\x00") {
				t.Fatalf("%s(%q) = %q", name, v, q)
			}
			if err == nil && name != "sh" && name != "shpath" && strings.ContainsAny(strings.Trim(q, `"`), "\"'`\\$") {
				t.Fatalf("%s(%q) = %q", name, v, q)
			}
		}
	})
}

func TestLoad_RefusesUnquotedValues(t *testing.T) {
	for _, text := range []string{
		"#!/bin/sh\n#SBATCH -J {{.Name}}\n", "{{if .GRES}}{{.GRES}}{{end}}", "{{with .QOS}}x{{else}}{{.Name}}{{end}}", `{{printf "%s" .Name}}`,
		`{{define "x"}}{{.Name}}{{end}}{{template "x" .}}`, "{{range $i, $r := .Name}}{{$r}}{{end}}",
	} {
		if _, err := parseTemplate("t", text); err == nil {
			t.Errorf("accepted: %s", text)
		}
	}
	for _, text := range []string{"{{sh .Name}}", "{{.Name | sh}}", `{{$x := .Name}}{{name $x}}`, "{{/* comment */}}"} {
		if _, err := parseTemplate("t", text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestLoad_SiteOverride(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); err != nil {
		t.Errorf("a folder without templates: %v", err)
	}
	own := "#!/bin/bash\n#SBATCH --job-name={{name .Name}}\nmodule load apptainer\n"
	if err := os.WriteFile(filepath.Join(dir, arrayTemplate), []byte(own), 0o644); err != nil {
		t.Fatal(err)
	}
	all, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	script, err := all.Array(job())
	if err != nil || !strings.Contains(string(script), "module load apptainer") {
		t.Errorf("%v: %s", err, script)
	}
	if err := os.WriteFile(filepath.Join(dir, arrayTemplate), []byte("echo {{.Name}}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil {
		t.Error("a template that quotes nothing is loaded")
	}
}

func TestMinutes(t *testing.T) {
	for d, want := range map[time.Duration]string{time.Minute: "0-00:01:00", 90 * time.Minute: "0-01:30:00", 49 * time.Hour: "2-01:00:00"} {
		if got, err := minutes(d); err != nil || got != want {
			t.Errorf("%v: %s, %v", d, got, err)
		}
	}
	for _, d := range []time.Duration{0, time.Second, 90 * time.Second, -time.Minute} {
		if got, err := minutes(d); err == nil {
			t.Errorf("%v: %s", d, got)
		}
	}
}

func TestName(t *testing.T) {
	const token = "sb-abcdefghij2345672345"
	for user, want := range map[string]string{"": token, "a b|c\nd": "a_b_c_d." + token, "llama.8b": "llama_8b." + token} {
		if got := Name(user, token); got != want {
			t.Errorf("%q: %s", user, got)
		}
	}
}
