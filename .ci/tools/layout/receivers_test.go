package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// mostMethods is the maximum number of methods of one type. A type with more methods has several subjects. Each subject
// can have a separate type that shares the rest (apps/controlplane/internal/api/subjects.go).
const mostMethods = 60

// manyMethods are types with more methods, with the reasons.
var manyMethods = map[string]string{
	"apps/controlplane/internal/store/mysql.tx":  "the store's transaction: one method for each query that a user of the store declares",
	"apps/controlplane/internal/store/memory.tx": "the store's transaction: one method for each query that a user of the store declares",
	"apps/windlass/internal/cli.app":             "the command line: one method for each command",
}

func TestTypes_HaveFewMethods(t *testing.T) {
	_, packages := workspace(t)
	over := map[string]bool{}
	for _, p := range packages {
		for receiver, n := range methods(t, p) {
			name := p.Path + "." + receiver
			if n <= mostMethods {
				continue
			}
			over[name] = true
			if manyMethods[name] == "" {
				t.Errorf("%s has %d methods, more than %d: split it by subjects", name, n, mostMethods)
			}
		}
	}
	for name := range manyMethods {
		require.True(t, over[name], "%s has at most %d methods: it needs no exception", name, mostMethods)
	}
}

// methods returns the number of methods of each type of the package, without generated files.
func methods(t *testing.T, p Package) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, file := range p.GoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution|parser.ParseComments)
		require.NoError(t, err)
		if ast.IsGenerated(f) {
			continue
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			counts[receiverOf(fn.Recv.List[0].Type)]++
		}
	}
	return counts
}

// receiverOf returns the name of a receiver's type, without pointer and type parameters.
func receiverOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverOf(e.X)
	case *ast.IndexExpr:
		return receiverOf(e.X)
	case *ast.IndexListExpr:
		return receiverOf(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
