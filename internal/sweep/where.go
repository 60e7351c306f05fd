package sweep

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"
	exprparser "github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/types"
	"github.com/expr-lang/expr/vm"

	"sbench/internal/diag"
	"sbench/internal/setting"
	"sbench/internal/strictyaml"
)

// condition is a compiled `where` expression. It is read-only.
type condition struct {
	text    string
	at      diag.Pos
	program *vm.Program
	axes    []*setting.Axis // that it looks at
}

// Limits of an expression; with them its cost is bounded by its length.
const (
	maxExpression = 2000
	maxConditions = 100
)

// functions that an expression may call. None of them loops, reads the clock or
// allocates more than its arguments.
var functions = []string{"len", "int", "float", "abs", "min", "max", "floor", "ceil", "round"}

func (p *parser) where(n *strictyaml.Node) {
	items := []*strictyaml.Node{n}
	if n.Kind != strictyaml.Scalar {
		if !p.List(n, "matrix.where") {
			return
		}
		items = n.Items
	}
	if len(items) > maxConditions {
		p.Faults.Errorf(n.At, "", "matrix.where has more than %d expressions", maxConditions)
		return
	}
	for _, item := range items {
		text, ok := p.Text(item, "an expression of matrix.where")
		if !ok {
			continue
		}
		if len(text) > maxExpression {
			p.Faults.Errorf(item.At, "", "an expression of matrix.where is longer than %d bytes", maxExpression)
			continue
		}
		if c, ok := p.compile(text, item); ok {
			p.file.doc.matrix.where = append(p.file.doc.matrix.where, c)
		}
	}
}

// within is the place of a character of an expression in the file, where the
// file writes the expression as it is.
func within(n *strictyaml.Node, text string, offset int) diag.Pos {
	at := n.At
	if n.Quote == '|' || strings.ContainsAny(text, "\n\\") || n.Quote != 0 && strings.IndexByte(text, n.Quote) >= 0 {
		return at
	}
	if n.Quote != 0 {
		at.Column++
	}
	at.Column += offset
	return at
}

func (p *parser) compile(text string, n *strictyaml.Node) (condition, bool) {
	tree, err := exprparser.Parse(text)
	if err != nil {
		p.expressionError(text, n, err)
		return condition{}, false
	}
	names := names{text: text, node: n, parser: p, good: true}
	names.look(tree.Node)
	if !names.good {
		return condition{}, false
	}
	options := []expr.Option{expr.Env(environment()), expr.AsBool(), expr.DisableAllBuiltins()}
	for _, f := range functions {
		options = append(options, expr.EnableBuiltin(f))
	}
	program, err := expr.Compile(text, options...)
	if err != nil {
		p.expressionError(text, n, err)
		return condition{}, false
	}
	return condition{text: text, at: n.At, program: program, axes: names.axes}, true
}

func (p *parser) expressionError(text string, n *strictyaml.Node, err error) {
	at, message := n.At, err.Error()
	var located *file.Error
	if errors.As(err, &located) {
		message = located.Message
		at = within(n, text, located.From)
	}
	message, _, _ = strings.Cut(message, "\n")
	p.Faults.Errorf(at, "durations are seconds and rates are requests/s: workload.duration <= 300 && hardware.gpu == 'l4'", "matrix.where: %s", message)
}

// environment is what an expression can name: every axis, with its type.
func environment() types.Map {
	root := types.Map{}
	for _, a := range setting.Axes() {
		m := root
		words := strings.Split(a.Key, ".")
		for _, w := range words[:len(words)-1] {
			next, ok := m[w].(types.Map)
			if !ok {
				next = types.Map{}
				m[w] = next
			}
			m = next
		}
		m[words[len(words)-1]] = expressionType(a.Type)
	}
	return root
}

func expressionType(t setting.Type) types.Type {
	switch t {
	case setting.TypeMap:
		return types.TypeOf(map[string]string{})
	case setting.TypeStrings:
		return types.TypeOf([]string{})
	case setting.TypeRates:
		return types.TypeOf([]float64{})
	case setting.TypeStages, setting.TypeBins, setting.TypePairs:
		return types.TypeOf([]any{})
	default:
	}
	switch t.Storage() {
	case setting.StoreInt:
		return types.Int
	case setting.StoreFloat:
		return types.Float64
	case setting.StoreBool:
		return types.Bool
	default:
		return types.String
	}
}

// names resolves the dotted names of an expression to axes.
type names struct {
	text   string
	node   *strictyaml.Node
	parser *parser
	axes   []*setting.Axis
	good   bool
}

func (v *names) fault(n ast.Node, hint, format string, args ...any) {
	v.good = false
	v.parser.Faults.Errorf(within(v.node, v.text, n.Location().From), hint, "matrix.where: "+format, args...)
}

// look walks the tree. Whole chains of names are resolved at once.
func (v *names) look(n ast.Node) {
	if path, ok := chain(n); ok {
		v.resolve(n, path)
		return
	}
	switch n := n.(type) {
	case *ast.MemberNode:
		// A chain with a computed part: engine.args[model.name].
		v.look(n.Node)
		v.look(n.Property)
		return
	case *ast.BinaryNode:
		if n.Operator == ".." {
			v.fault(n, "", "ranges are not available")
			return
		}
	case *ast.VariableDeclaratorNode, *ast.SequenceNode, *ast.PredicateNode, *ast.PointerNode:
		v.fault(n, "", "only operators and plain functions are available")
		return
	case *ast.BuiltinNode:
		if !slices.Contains(functions, n.Name) {
			v.fault(n, "available are "+strings.Join(functions, ", "), "the function %s is not available", n.Name)
			return
		}
	case *ast.CallNode:
		if name, ok := n.Callee.(*ast.IdentifierNode); ok {
			v.fault(n, "available are "+strings.Join(functions, ", "), "unknown function %s", strconv.Quote(name.Value))
		} else {
			v.fault(n, "", "axes have no methods")
		}
		return
	}
	for _, child := range below1(n) {
		v.look(child)
	}
}

// below1 returns the children of a node without those of deeper levels.
func below1(n ast.Node) []ast.Node {
	switch n := n.(type) {
	case *ast.UnaryNode:
		return []ast.Node{n.Node}
	case *ast.BinaryNode:
		return []ast.Node{n.Left, n.Right}
	case *ast.ChainNode:
		return []ast.Node{n.Node}
	case *ast.SliceNode:
		return slices.DeleteFunc([]ast.Node{n.Node, n.From, n.To}, func(n ast.Node) bool { return n == nil })
	case *ast.ConditionalNode:
		return []ast.Node{n.Cond, n.Exp1, n.Exp2}
	case *ast.BuiltinNode:
		return n.Arguments
	case *ast.ArrayNode:
		return n.Nodes
	case *ast.MapNode:
		return n.Pairs
	case *ast.PairNode:
		return []ast.Node{n.Key, n.Value}
	}
	return nil
}

// chain returns the dotted path of a.b["c"]. A chain may end in an index or a
// computed property of an axis; then it is none.
func chain(n ast.Node) ([]string, bool) {
	switch n := n.(type) {
	case *ast.IdentifierNode:
		return []string{n.Value}, true
	case *ast.ChainNode:
		return chain(n.Node)
	case *ast.MemberNode:
		property, ok := n.Property.(*ast.StringNode)
		if !ok {
			return nil, false
		}
		path, ok := chain(n.Node)
		return append(path, property.Value), ok
	}
	return nil, false
}

func (v *names) resolve(n ast.Node, path []string) {
	key := strings.Join(path, ".")
	axis, _, ok := setting.LookupAxis(key)
	if ok {
		if !slices.Contains(v.axes, axis) {
			v.axes = append(v.axes, axis)
		}
		return
	}
	if isBlock(key) {
		v.fault(n, "its axes are "+strings.Join(children(key+"."), ", "), "%s is a block, not an axis", key)
		return
	}
	hint := suggestAxis(key, nil)
	for _, m := range []string{"engine.args.", "engine.env."} {
		if i := strings.Index(v.text, m); i >= 0 && strings.ContainsRune(v.text[i:], '-') && len(path) == 1 {
			hint = fmt.Sprintf("write %s[\"…\"] for names with dashes", strings.TrimSuffix(m, "."))
		}
	}
	v.fault(n, hint, "unknown axis %s", strconv.Quote(key))
}

// holds evaluates the condition for a normalized setting.
func (c condition) holds(machine *vm.VM, s *setting.Setting) (bool, error) {
	env := map[string]any{}
	var missing []string
	for _, a := range c.axes {
		value := expressionValue(a.Value(s))
		if value == nil {
			missing = append(missing, a.Key)
		}
		m := env
		words := strings.Split(a.Key, ".")
		for _, w := range words[:len(words)-1] {
			next, ok := m[w].(map[string]any)
			if !ok {
				next = map[string]any{}
				m[w] = next
			}
			m = next
		}
		m[words[len(words)-1]] = value
	}
	out, err := machine.Run(c.program, env)
	if err != nil {
		if len(missing) > 0 {
			return false, fmt.Errorf("%s has no meaning for one of the points", strings.Join(missing, ", "))
		}
		message, _, _ := strings.Cut(err.Error(), "\n")
		return false, errors.New(message)
	}
	return out.(bool), nil
}

func expressionValue(v any) any {
	if i, ok := v.(int64); ok {
		return int(i)
	}
	return v
}

// equalValues compares two values of an axis.
func equalValues(a, b any) bool {
	switch a := a.(type) {
	case string, int64, float64, bool, nil:
		return a == b
	default:
		return reflect.DeepEqual(a, b)
	}
}

// Condition is an expression over the axes, as in matrix.where. It is read-only.
type Condition struct{ condition }

// ParseCondition compiles an expression. The faults carry places within it.
func ParseCondition(name, text string) (Condition, diag.List) {
	faults := diag.NewCollector(name, []byte(text))
	p := parser{Reader: strictyaml.Reader{Faults: faults}, file: &File{doc: document{places: map[string]diag.Pos{}, tainted: map[string]bool{}}}}
	n := &strictyaml.Node{At: diag.Pos{Line: 1, Column: 1}, Text: text, Plain: true}
	if len(text) > maxExpression {
		faults.Errorf(n.At, "", "an expression is longer than %d bytes", maxExpression)
		return Condition{}, faults.List()
	}
	c, _ := p.compile(text, n)
	return Condition{c}, faults.List()
}

// Holds evaluates the condition for a normalized setting. The error says that an
// axis has no meaning for it.
func (c Condition) Holds(s *setting.Setting) (bool, error) { return c.holds(&vm.VM{}, s) }
