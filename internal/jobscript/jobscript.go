// Package jobscript renders batch scripts from templates/*.sbatch.tmpl, or from a
// site's own copies of them.
//
// It promises that no value can leave its place: every action of a template must
// end in a quoting function of the value's type, which a template is checked for
// when it is loaded, and these functions refuse what Slurm's option parser or the
// shell could read as anything but that value.
package jobscript

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"text/template/parse"
	"time"

	"sbench/templates"
)

// Job is what a template sees. Zero fields print nothing.
type Job struct {
	Name    string // of the job: holds the token
	Token   string
	Comment string // free text; holds the token as a word

	Tasks    int // the array's indexes are 0 to Tasks-1
	Throttle int // how many at once; 0 for no limit

	Partition, Account, QOS, WCKey, Reservation string
	Nice                                        int
	Dependency                                  string
	GRES, StepGRES                              string // per node, of the job and of a run in it
	Nodes                                       int
	CPUs                                        int    // per node
	Memory                                      string // per node, as --mem takes it
	Exclusive                                   bool
	OwnUser                                     bool // only jobs of this user share the node
	Constraint                                  string
	Switches                                    int
	NodeList, Exclude                           string

	TimeLimit time.Duration // whole minutes
	Grace     time.Duration // how long before the end the steps get SIGTERM
	Requeue   bool          // Slurm starts the task again after preemption and node loss
	Options   []Option      // the site's own, in their order

	Dir        string // the batch's folder, absolute
	Digest     string // of its batch.json
	TaskDigest string // of its task.sh
	Programs   string // the folder of sbench-runner, absolute; named by what is in it
}

// Option is a further option of sbatch: --Name or --Name=Value.
type Option struct{ Name, Value string }

// Templates renders scripts. It is safe for concurrent use.
type Templates struct{ array *template.Template }

// arrayTemplate is the file name of the template of job arrays.
const arrayTemplate = "array.sbatch.tmpl"

// Load reads the templates; those in dir, if there are any, take the place of the
// built-in ones. dir "" is none.
func Load(dir string) (*Templates, error) {
	var source fs.FS = templates.FS
	if dir != "" {
		if _, err := os.Stat(filepath.Join(dir, arrayTemplate)); err == nil {
			source = os.DirFS(dir)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("load templates: %w", err)
		}
	}
	text, err := fs.ReadFile(source, arrayTemplate)
	if err != nil {
		return nil, fmt.Errorf("load templates: %w", err)
	}
	t, err := parseTemplate(arrayTemplate, string(text))
	if err != nil {
		return nil, err
	}
	return &Templates{array: t}, nil
}

func parseTemplate(name, text string) (*template.Template, error) {
	t, err := template.New(name).Funcs(quoting).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("load templates: %w", err)
	}
	for _, part := range t.Templates() {
		if part.Tree == nil {
			continue
		}
		if err := checkQuoted(part.Tree, part.Root); err != nil {
			return nil, fmt.Errorf("load templates: %w", err)
		}
	}
	return t, nil
}

// checkQuoted refuses an action that prints a value without a quoting function.
func checkQuoted(tree *parse.Tree, node parse.Node) error {
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		for _, child := range n.Nodes {
			if err := checkQuoted(tree, child); err != nil {
				return err
			}
		}
	case *parse.IfNode:
		return checkBranches(tree, n.List, n.ElseList)
	case *parse.WithNode:
		return checkBranches(tree, n.List, n.ElseList)
	case *parse.RangeNode:
		return checkBranches(tree, n.List, n.ElseList)
	case *parse.ActionNode:
		if len(n.Pipe.Decl) > 0 {
			return nil // an assignment prints nothing
		}
		last := n.Pipe.Cmds[len(n.Pipe.Cmds)-1]
		if id, ok := last.Args[0].(*parse.IdentifierNode); ok {
			if _, quoted := quoting[id.Ident]; quoted {
				return nil
			}
		}
		where, _ := tree.ErrorContext(n)
		return fmt.Errorf("%s: %s prints a value without a quoting function", where, n)
	}
	return nil
}

func checkBranches(tree *parse.Tree, lists ...*parse.ListNode) error {
	for _, l := range lists {
		if err := checkQuoted(tree, l); err != nil {
			return err
		}
	}
	return nil
}

// Array renders the script of a job array. It fails if a value cannot be quoted.
func (t *Templates) Array(job Job) ([]byte, error) {
	var b bytes.Buffer
	if err := t.array.Execute(&b, job); err != nil {
		return nil, fmt.Errorf("render batch script: %w", err)
	}
	script := b.Bytes()
	if !bytes.HasPrefix(script, []byte("#!")) {
		return nil, errors.New("render batch script: it does not begin with a #! line")
	}
	if bytes.ContainsAny(script, "\r\x00") {
		return nil, errors.New("render batch script: it holds carriage returns or NULs, which sbatch refuses")
	}
	return script, nil
}

// Comment makes the job's comment: the token as a word of its own, and what an
// administrator wants to know of whose work it is.
func Comment(token string, sweep int64, user, text string) string {
	parts := []string{"sbench", token, fmt.Sprintf("sweep=%d", sweep)}
	if user != "" {
		parts = append(parts, "user="+user)
	}
	if text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}

// Name makes the job's name: the user's part, in characters that every Slurm
// command takes unchanged, and the token.
func Name(user, token string) string {
	clean := strings.Map(func(r rune) rune {
		if strings.ContainsRune(nameRunes, r) {
			return r
		}
		return '_'
	}, user)
	if len(clean) > 64 {
		clean = clean[:64]
	}
	if clean == "" {
		return token
	}
	return clean + "." + token
}

const nameRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
