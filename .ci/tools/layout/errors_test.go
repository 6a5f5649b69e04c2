package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A nil error that is wrapped has the text "%!w(<nil>)".
func TestErrors_DoNotWrapNil(t *testing.T) {
	root, err := Root(".")
	require.NoError(t, err)
	for _, top := range []string{".ci", "apps", "db", "pkg"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && d.Name() == "node_modules" {
				return fs.SkipDir
			}
			if d.IsDir() || !strings.HasSuffix(path, ".go") {
				return nil
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, at := range nilWraps(f) {
				t.Errorf("%s: the error may be nil: join it to a new error with errors.Join", fset.Position(at))
			}
			return nil
		}))
	}
}

func TestErrors_NilWrapsAreFound(t *testing.T) {
	for text, found := range map[string]int{
		`if err != nil || n == 0 { return fmt.Errorf("read %d: %w", n, err) }`:                     1,
		`if n == 0 || err != nil { return fatal{fmt.Errorf("read %d: %w", n, errors.Join(err))} }`: 1,
		`switch { case n == 0, err != nil: return fmt.Errorf("read: %w", err) }`:                   1,
		`switch { case err != nil || n == 0: return fmt.Errorf("read: %w", err) }`:                 1,
		`if err != nil || n == 0 { return errors.Join(fmt.Errorf("read %d", n), err) }`:            0,
		`if err != nil || n == 0 { return fmt.Errorf("%w: %d", errShort, n) }`:                     0,
		`if err != nil && n == 0 { return fmt.Errorf("read: %w", err) }`:                           0,
		`if a != nil || b != nil { return fmt.Errorf("read: %w", errors.Join(a, b)) }`:             0,
		`if err != nil || n == 0 { err = f(); return fmt.Errorf("read: %w", err) }`:                0,
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "made.go", "package made\nfunc f() error {\n"+text+"\nreturn nil }", parser.SkipObjectResolution)
		require.NoError(t, err, text)
		require.Len(t, nilWraps(f), found, text)
	}
}

// nilWraps returns the calls of fmt.Errorf that wrap an error which may be nil. The call must be the only statement after
// a condition with several alternatives. One alternative compares the error with nil, and another compares no error.
func nilWraps(f *ast.File) (found []token.Pos) {
	ast.Inspect(f, func(n ast.Node) bool {
		var conditions []ast.Expr
		var body []ast.Stmt
		switch n := n.(type) {
		case *ast.IfStmt:
			conditions, body = []ast.Expr{n.Cond}, n.Body.List
		case *ast.CaseClause:
			conditions, body = n.List, n.Body
		}
		if len(body) != 1 {
			return true
		}
		if _, ok := body[0].(*ast.ReturnStmt); !ok {
			return true
		}
		unset, others := alternatives(conditions)
		if others == 0 || len(unset) == 0 {
			return true
		}
		ast.Inspect(body[0], func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && wraps(call, unset) {
				found = append(found, call.Pos())
			}
			return true
		})
		return true
	})
	return found
}

// alternatives returns the names that conditions compare with nil, as in err != nil, and the number of the other
// alternatives.
func alternatives(conditions []ast.Expr) (unset map[string]bool, others int) {
	unset = map[string]bool{}
	var add func(ast.Expr)
	add = func(e ast.Expr) {
		c, ok := e.(*ast.BinaryExpr)
		if ok && c.Op == token.LOR {
			add(c.X)
			add(c.Y)
			return
		}
		if ok && c.Op == token.NEQ && isName(c.Y, "nil") {
			if x, ok := c.X.(*ast.Ident); ok {
				unset[x.Name] = true
				return
			}
		}
		others++
	}
	for _, c := range conditions {
		add(c)
	}
	return unset, others
}

// wraps reports whether the call is fmt.Errorf with %w and one of the names among its arguments.
func wraps(call *ast.CallExpr, names map[string]bool) (found bool) {
	fn, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !isName(fn.X, "fmt") || fn.Sel.Name != "Errorf" || len(call.Args) < 2 {
		return false
	}
	if format, ok := call.Args[0].(*ast.BasicLit); !ok || !strings.Contains(format.Value, "%w") {
		return false
	}
	for _, arg := range call.Args[1:] {
		if join, ok := arg.(*ast.CallExpr); ok {
			if fn, ok := join.Fun.(*ast.SelectorExpr); !ok || !isName(fn.X, "errors") || fn.Sel.Name != "Join" {
				continue
			}
			for _, one := range join.Args {
				if x, ok := one.(*ast.Ident); ok && names[x.Name] {
					return true
				}
			}
		}
		if x, ok := arg.(*ast.Ident); ok && names[x.Name] {
			return true
		}
	}
	return false
}

func isName(e ast.Expr, name string) bool {
	x, ok := e.(*ast.Ident)
	return ok && x.Name == name
}
