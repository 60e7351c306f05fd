package store_test

import (
	"errors"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"sbench/internal/pgtest"
	"sbench/internal/store"
)

// sources parses the package's own files.
func sources(t *testing.T) (*token.FileSet, []*ast.File) {
	t.Helper()
	set := token.NewFileSet()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return set, files
}

// constants returns the value of every constant whose name begins with sql. The
// type checker evaluates the concatenations; imports are of no interest to it.
func constants(t *testing.T) map[string]string {
	t.Helper()
	set, files := sources(t)
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}}
	config := types.Config{Error: func(error) {}, Importer: noImports{}}
	_, _ = config.Check("store", set, files, info)
	found := map[string]string{}
	for ident, object := range info.Defs {
		c, ok := object.(*types.Const)
		if ok && strings.HasPrefix(ident.Name, "sql") && c.Val().Kind() == constant.String {
			found[ident.Name] = constant.StringVal(c.Val())
		}
	}
	return found
}

type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not imported") }

var _ types.Importer = noImports{}

// TestStatements_Prepare: PostgreSQL understands every statement.
func TestStatements_Prepare(t *testing.T) {
	t.Parallel()
	statements := constants(t)
	if len(statements) < 20 {
		t.Fatalf("found only %d statements: %v", len(statements), slices.Sorted(maps.Keys(statements)))
	}
	maps.Copy(statements, store.GeneratedSQL())
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, name := range slices.Sorted(maps.Keys(statements)) {
		sql := statements[name]
		if strings.HasPrefix(sql, "listen ") { // a utility statement cannot be prepared
			continue
		}
		if _, err := conn.Prepare(t.Context(), name, sql); err != nil {
			var pg *pgconn.PgError
			if errors.As(err, &pg) && pg.Position > 0 {
				t.Errorf("%s: %v, near %.60q", name, err, sql[min(int(pg.Position)-1, len(sql)):])
				continue
			}
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStatements_Named: no statement hides in the middle of a call.
func TestStatements_Named(t *testing.T) {
	t.Parallel()
	at := map[string]int{"Exec": 1, "Query": 1, "QueryRow": 1, "Queue": 0, "collect": 3}
	set, files := sources(t)
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			i, ok := at[calledName(call.Fun)]
			if !ok || len(call.Args) <= i {
				return true
			}
			ident, ok := call.Args[i].(*ast.Ident)
			if !ok || !strings.HasPrefix(ident.Name, "sql") {
				t.Errorf("%s: the statement has no name that begins with sql", set.Position(call.Args[i].Pos()))
			}
			return true
		})
	}
}

func calledName(fun ast.Expr) string {
	switch f := fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	case *ast.IndexExpr:
		return calledName(f.X)
	}
	return ""
}

// unfenced are the statements that change something and ask for no epoch: what the
// API's handlers write in every daemon, and the election itself.
var unfenced = []string{
	"sqlRaiseEpoch", "sqlInsertAudit", "sqlRestrict", "sqlTouchToken", "sqlSeeCredential", "sqlForgetCredentials",
}

// TestStatements_Fenced: every statement that changes anything runs in a
// transaction of WithTx, which checks the epoch, or is known not to need it.
func TestStatements_Fenced(t *testing.T) {
	t.Parallel()
	texts := constants(t)
	set, files := sources(t)
	outside := func(e ast.Expr) bool { // of a transaction: the pool, or a connection
		switch x := e.(type) {
		case *ast.SelectorExpr:
			return x.Sel.Name == "pool"
		case *ast.Ident:
			return x.Name == "conn"
		}
		return false
	}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			var by ast.Expr
			at := 1
			switch name := calledName(call.Fun); {
			case name == "collect" && len(call.Args) > 3:
				by, at = call.Args[1], 3
			case (name == "Exec" || name == "Query" || name == "QueryRow") && len(call.Args) > 1:
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
					by = sel.X
				}
			}
			if by == nil || !outside(by) {
				return true
			}
			name := call.Args[at].(*ast.Ident).Name
			if changes.MatchString(texts[name]) != slices.Contains(unfenced, name) {
				t.Errorf("%s: %s changes something: %v, and is known to: %v", set.Position(call.Pos()), name, changes.MatchString(texts[name]), slices.Contains(unfenced, name))
			}
			return true
		})
	}
}

var changes = regexp.MustCompile(`(?i)\b(insert\s+into|update\s+\w+(\s+\w+)?\s+set|delete\s+from|merge\s+into|truncate)\b`)
