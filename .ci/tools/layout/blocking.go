package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// This file finds calls that may block in code that must not block. The gateway's engine runs requests on pollers, and
// other connections wait for these pollers. Code that may block there must be in the function that a caller passes to a
// method with the name Blocking. Only a search of all reachable code finds a place where this was forgotten.

// Code is type-checked source, in which Blocking finds calls that may block.
type Code struct {
	fset *token.FileSet
	// bodies has the bodies of all checked functions, each with its package.
	bodies map[*types.Func]body
	// literals are function literals in composite literals of a type, such as callbacks in a Config.
	literals map[string][]literal
}

type body struct {
	block *ast.BlockStmt
	info  *types.Info
}

type literal struct {
	body

	at string
}

// LoadCode type-checks the package at path, which has no Prefix, and the packages of this repository that it imports,
// except generated packages. root has go.work. It reads the export data of other packages from the build cache.
func LoadCode(root, path string) (*Code, error) {
	out, err := goCommand(root, []string{"CGO_ENABLED=0"}, "list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Export", Prefix+path)
	if err != nil {
		return nil, err
	}
	c := &Code{fset: token.NewFileSet(), bodies: map[*types.Func]body{}, literals: map[string][]literal{}}
	l := loader{code: c, exports: map[string]string{}, checked: map[string]*types.Package{}}
	l.compiled = importer.ForCompiler(c.fset, "gc", l.open)
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return c, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the output of go list: %w", err)
		}
		l.exports[p.ImportPath] = p.Export
		if ours, ok := strings.CutPrefix(p.ImportPath, Prefix); ok && !strings.HasPrefix(ours, "proto/") {
			if err := l.check(p.ImportPath, p.Dir, p.GoFiles); err != nil {
				return nil, err
			}
		}
	}
}

type loader struct {
	code     *Code
	exports  map[string]string
	checked  map[string]*types.Package
	compiled types.Importer
}

func (l *loader) open(path string) (io.ReadCloser, error) {
	if l.exports[path] == "" {
		return nil, fmt.Errorf("no export data of %s", path)
	}
	return os.Open(l.exports[path])
}

// Import implements types.Importer.
func (l *loader) Import(path string) (*types.Package, error) {
	if p := l.checked[path]; p != nil {
		return p, nil
	}
	return l.compiled.Import(path)
}

func (l *loader) check(path, dir string, names []string) error {
	files := make([]*ast.File, len(names))
	for i, name := range names {
		f, err := parser.ParseFile(l.code.fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files[i] = f
	}
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}, Instances: map[*ast.Ident]types.Instance{},
	}
	p, err := (&types.Config{Importer: l}).Check(path, l.code.fset, files, info)
	if err != nil {
		return fmt.Errorf("check %s: %w", path, err)
	}
	l.checked[path] = p
	for _, f := range files {
		l.code.collect(f, info)
	}
	return nil
}

func (c *Code) collect(f *ast.File, info *types.Info) {
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		if of, ok := info.Defs[fn.Name].(*types.Func); ok {
			c.bodies[of] = body{fn.Body, info}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		composite, ok := n.(*ast.CompositeLit)
		if !ok || info.Types[composite].Type == nil {
			return true
		}
		name := short(info.Types[composite].Type.String())
		for _, element := range composite.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				if fn, ok := pair.Value.(*ast.FuncLit); ok {
					c.literals[name] = append(c.literals[name], literal{body{fn.Body, info}, name + "." + types.ExprString(pair.Key)})
				}
			}
		}
		return true
	})
}

// Blocks are functions outside this repository that may block for a long time, with names in the form of
// types.Func.FullName. A name that ends in "." means all functions whose names begin with it.
var Blocks = []string{
	"time.Sleep", "(*sync.WaitGroup).Wait", "(*sync.Cond).Wait", "(*log/slog.Logger).", "log/slog.",
	"net.Dial", "net.DialTimeout", "(*net.Dialer).", "net.Listen", "(net.Conn).Read", "(net.Conn).Write",
	"(*net/http.Client).", "(*net/http.Transport).RoundTrip", "(net/http.RoundTripper).RoundTrip",
	"os.Open", "os.OpenFile", "os.ReadFile", "os.WriteFile", "os.Rename", "(*os.File).Write", "(*os.File).Sync", "(io.Writer).Write",
	"(*golang.org/x/sync/errgroup.Group).Wait",
}

// ownGoroutine are functions that run their argument on another goroutine.
var ownGoroutine = []string{"time.AfterFunc", "context.AfterFunc", "(*sync.WaitGroup).Go"}

// Blocking returns the places that may block and that the roots reach. A root is the name of a function in the form of
// types.Func.FullName without Prefix, or a type whose callbacks are roots. Functions in spared are not searched, and
// neither are calls of methods with the name Blocking, where code may block.
func (c *Code) Blocking(roots, spared []string) ([]string, error) {
	w := walk{code: c, spared: spared, seen: map[*types.Func]bool{}}
	for _, root := range roots {
		found := false
		for fn := range c.bodies {
			if fullName(fn) == root {
				w.function(fn, root)
				found = true
			}
		}
		for _, l := range c.literals[root] {
			w.block(l.body, l.at)
			found = true
		}
		if !found {
			return nil, fmt.Errorf("there is no %s: it was renamed, or the root has another form", root)
		}
	}
	slices.Sort(w.found)
	return slices.Compact(w.found), nil
}

func fullName(fn *types.Func) string { return strings.ReplaceAll(fn.FullName(), Prefix, "") }

type walk struct {
	code   *Code
	spared []string
	seen   map[*types.Func]bool
	found  []string
}

func (w *walk) report(n ast.Node, what, way string) {
	at := w.code.fset.Position(n.Pos())
	w.found = append(w.found, fmt.Sprintf("%s:%d: %s, reached by %s", filepath.Base(at.Filename), at.Line, what, way))
}

func (w *walk) function(fn *types.Func, way string) {
	b, ok := w.code.bodies[fn]
	if !ok || w.seen[fn] || slices.Contains(w.spared, fullName(fn)) {
		return
	}
	w.seen[fn] = true
	w.block(b, way)
}

func (w *walk) block(b body, way string) {
	ast.Inspect(b.block, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			return false
		case *ast.SelectStmt:
			return w.choice(n, b, way)
		case *ast.SendStmt:
			w.report(n, "a send", way)
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				w.report(n, "a receive", way)
			}
		case *ast.RangeStmt:
			if t := b.info.Types[n.X].Type; t != nil {
				if _, is := t.Underlying().(*types.Chan); is {
					w.report(n, "a range over a channel", way)
				}
			}
		case *ast.CallExpr:
			return w.call(n, b, way)
		}
		return true
	})
}

// choice reports a select, unless it has a default and therefore does not block.
func (w *walk) choice(s *ast.SelectStmt, b body, way string) bool {
	if !slices.ContainsFunc(s.Body.List, func(c ast.Stmt) bool { return c.(*ast.CommClause).Comm == nil }) {
		w.report(s, "a select without a default", way)
	}
	for _, c := range s.Body.List {
		w.block(body{&ast.BlockStmt{List: c.(*ast.CommClause).Body}, b.info}, way)
	}
	return false
}

func (w *walk) call(n *ast.CallExpr, b body, way string) bool {
	var id *ast.Ident
	switch f := ast.Unparen(n.Fun).(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	}
	fn, ok := b.info.Uses[id].(*types.Func)
	if !ok {
		return true // a conversion, a built-in function, or a function value
	}
	fn = fn.Origin()
	name := fullName(fn)
	switch {
	case fn.Name() == "Blocking" && fn.Signature().Recv() != nil, slices.Contains(ownGoroutine, name):
		return false
	case blocks(name):
		w.report(n, name, way)
	default:
		w.function(fn, way+" > "+fn.Name())
	}
	return true
}

func blocks(name string) bool {
	return slices.ContainsFunc(Blocks, func(known string) bool {
		return name == known || strings.HasSuffix(known, ".") && strings.HasPrefix(name, known)
	})
}
