package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// source is the syntax of the packages that define what the pages list.
type source struct {
	root string
	fset *token.FileSet
	// packages are the packages by folder, from the root: apps/controlplane/internal/plan.
	packages map[string]*pkg
	// comments are the comments of the protos, by the full name of message, field, enum or value:
	// windlass.v1.Port, windlass.v1.Port.name.
	comments map[string]string
}

// pkg is the files of one folder, without tests.
type pkg struct {
	dir   string
	files []*ast.File
	// vars are the package's variables and constants with one value each.
	vars map[string]ast.Expr
}

// read are the trees of Go code that readSource parses.
var read = []string{"apps/controlplane", "apps/agent", "apps/gateway", "apps/modelserver", "apps/onnxserver", "pkg"}

func readSource(root string) (*source, error) {
	s := &source{root: root, fset: token.NewFileSet(), packages: map[string]*pkg{}, comments: map[string]string{}}
	for _, tree := range read {
		err := filepath.WalkDir(filepath.Join(root, tree), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			return s.parsePackage(path, filepath.ToSlash(filepath.Dir(rel)))
		})
		if err != nil {
			return nil, err
		}
	}
	for _, p := range s.packages {
		p.findVars()
	}
	return s, s.readComments()
}

func (s *source) parsePackage(path, dir string) error {
	f, err := parser.ParseFile(s.fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	p := s.packages[dir]
	if p == nil {
		p = &pkg{dir: dir, vars: map[string]ast.Expr{}}
		s.packages[dir] = p
	}
	p.files = append(p.files, f)
	return nil
}

func (p *pkg) findVars() {
	for _, f := range p.files {
		for _, decl := range f.Decls {
			general, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				value, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for i, name := range value.Names {
					if i < len(value.Values) {
						p.vars[name.Name] = value.Values[i]
					}
				}
			}
		}
	}
}

// literalText returns the value of a string literal.
func literalText(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// constant is a named text of a package, with the comment next to it or above it.
type constant struct{ name, value, comment string }

// constantsWithPrefix returns the texts of a package whose names begin with a prefix, in the order of the code.
func (s *source) constantsWithPrefix(dir, prefix string) ([]constant, error) {
	p := s.packages[dir]
	if p == nil {
		return nil, fmt.Errorf("no package %s", dir)
	}
	var out []constant
	for _, f := range p.files {
		for _, decl := range f.Decls {
			general, ok := decl.(*ast.GenDecl)
			if !ok || general.Tok != token.CONST {
				continue
			}
			for _, spec := range general.Specs {
				value := spec.(*ast.ValueSpec) //nolint:forcetypeassert // a constant declaration has only such specs
				for i, name := range value.Names {
					if !strings.HasPrefix(name.Name, prefix) || i >= len(value.Values) {
						continue
					}
					text, ok := literalText(value.Values[i])
					if !ok {
						continue
					}
					comment := value.Comment.Text()
					if comment == "" {
						comment = value.Doc.Text()
					}
					if comment == "" && len(general.Specs) == 1 {
						comment = general.Doc.Text()
					}
					out = append(out, constant{name.Name, text, strings.TrimSpace(comment)})
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no constants that begin with %s", dir, prefix)
	}
	return out, nil
}

var (
	protoOpen    = regexp.MustCompile(`^(message|enum|service|oneof)\s+(\w+)\s*\{`)
	protoField   = regexp.MustCompile(`^(?:repeated |optional )?(?:map<[^>]+>|[\w.]+)\s+(\w+)\s*=\s*\d+`)
	protoValue   = regexp.MustCompile(`^(\w+)\s*=\s*\d+`)
	protoPackage = regexp.MustCompile(`^package\s+([\w.]+);`)
)

// readComments reads the comments of the protos of the user API, because the descriptors in the programs do
// not contain them.
func (s *source) readComments() error {
	files, err := filepath.Glob(filepath.Join(s.root, "proto/windlass/v1/*.proto"))
	if err != nil {
		return err
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := s.commentsOf(string(data)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func (s *source) commentsOf(text string) error {
	scope, above := []string{""}, []string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if comment, ok := strings.CutPrefix(line, "//"); ok {
			above = append(above, strings.TrimPrefix(comment, " "))
			continue
		}
		put := func(name string) {
			s.comments[strings.Join(slices.DeleteFunc(slices.Concat(scope, []string{name}), isEmpty), ".")] = strings.Join(above, "\n")
		}
		opened := ""
		switch {
		case protoPackage.MatchString(line):
			scope[0] = protoPackage.FindStringSubmatch(line)[1]
		case protoOpen.MatchString(line):
			m := protoOpen.FindStringSubmatch(line)
			// Fields of a oneof belong to the message.
			if opened = m[2]; m[1] == "oneof" {
				opened = ""
			} else {
				put(opened)
			}
		case protoField.MatchString(line):
			put(protoField.FindStringSubmatch(line)[1])
		case protoValue.MatchString(line):
			put(protoValue.FindStringSubmatch(line)[1])
		}
		code := quoted.ReplaceAllString(line, "")
		for range strings.Count(code, "{") {
			scope, opened = append(scope, opened), ""
		}
		closed := strings.Count(code, "}")
		if closed >= len(scope) {
			return fmt.Errorf("unbalanced braces at %q", line)
		}
		scope = scope[:len(scope)-closed]
		if line == "" || !strings.HasPrefix(line, "//") {
			above = nil
		}
	}
	return nil
}

var quoted = regexp.MustCompile(`"(\\.|[^"\\])*"`)

func isEmpty(s string) bool { return s == "" }
