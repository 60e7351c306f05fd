package cli

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// Every command line of the workflow is one that sbench takes.
func TestWorkflow_CommandLinesParse(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/ci/sbench.yml")
	if err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct {
				Run string `yaml:"run"`
			} `yaml:"steps"`
		} `yaml:"jobs"`
	}
	if err := yaml.Unmarshal(text, &workflow); err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../docs/ci/README.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	check := func(line string) {
		t.Helper()
		words := shellWords(line)
		var out bytes.Buffer
		root := newRootCommand(&app{stdout: &out, stderr: &out})
		cmd, rest, err := root.Find(words[1:])
		if err != nil || cmd == root {
			t.Errorf("%s: no such command: %v", line, err)
			return
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("%s: %v", line, err)
		} else if cmd.Args != nil { // what has none takes any, and looks at them itself
			if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
		seen[cmd.CommandPath()] = true
	}
	for _, job := range workflow.Jobs {
		for _, step := range job.Steps {
			for line := range strings.SplitSeq(step.Run, "\n") {
				if line = strings.TrimSpace(line); strings.HasPrefix(line, "sbench ") {
					check(line)
				}
			}
		}
	}
	for _, m := range regexp.MustCompile("(?m)(?:^ *(?:\\$ )?|`)(sbench [a-z]+ [a-z]+ [^`\n]*)").FindAllStringSubmatch(string(readme), -1) {
		check(m[1])
	}
	for _, want := range []string{"sbench checkpoint add", "sbench submit", "sbench check", "sbench validate", "sbench token create", "sbench quota set", "sbench baseline set"} {
		if !seen[want] {
			t.Errorf("the workflow and its manual do not use %s", want)
		}
	}
}

// shellWords cuts a simple command as a shell does: quotes, variables and
// substitutions are one word, redirections and what follows them are none.
func shellWords(line string) []string {
	line, _, _ = strings.Cut(line, " > ")
	line = regexp.MustCompile(`\$\(cat sweep\)`).ReplaceAllString(line, "17")
	line = regexp.MustCompile(`\$[A-Z_]+`).ReplaceAllString(line, "value")
	var words []string
	for _, w := range regexp.MustCompile(`(?:[^\s"]|"[^"]*")+`).FindAllString(line, -1) {
		words = append(words, strings.ReplaceAll(w, `"`, ""))
	}
	return words
}
