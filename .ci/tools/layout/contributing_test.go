package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// placesOf finds texts such as "`a` and `b` of `file.go`" and "`a` in the API's `file.go`".
var placesOf = regexp.MustCompile("((?:`[^`]+`(?:, and |, or |, | and | or )?)+) (?:of|in) (?:the )?(?:\\w+'s )?`([\\w./-]+)`")

var codeSpan = regexp.MustCompile("`([^`]+)`")

// A page with an old name of a function, a list or a test misleads its readers.
func TestContributing_NamesWhatTheFilesHave(t *testing.T) {
	root, err := Root(".")
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs/contributing/README.md"))
	require.NoError(t, err)
	paths, err := trackedFiles(root)
	require.NoError(t, err)
	found := misnamed(t, root, paths, string(page))
	require.Empty(t, found, "docs/contributing has names that do not exist")
	require.Equal(t, []string{
		"`missing` of `rules.go`", "`strconv` of `.ci/tools/layout/rules.go`", "`nowhere.go`",
	}, misnamed(t, root, paths, "`Rules` and `missing` of `rules.go`, `TestContributing` of `.ci/tools/layout`, `strconv` of\n   `.ci/tools/layout/rules.go`, `x` of `nowhere.go`."))
}

// misnamed returns the names that the page places in a file, although the file does not declare them. It also returns
// files that do not exist. It skips texts that are not plain names or paths, such as commands.
func misnamed(t *testing.T, root string, paths []string, page string) (out []string) {
	t.Helper()
	page = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(page, "")
	page = regexp.MustCompile(`\n +`).ReplaceAllString(page, " ")
	for _, m := range placesOf.FindAllStringSubmatch(page, -1) {
		files := filesNamed(paths, m[2])
		if len(files) == 0 {
			if strings.ContainsAny(m[2], "/.") && !regexp.MustCompile(`^\w+\.[A-Z]`).MatchString(m[2]) {
				out = append(out, "`"+m[2]+"`")
			}
			continue // a type
		}
		declared := map[string]bool{}
		for _, file := range files {
			for name := range declaredIn(t, filepath.Join(root, file)) {
				declared[name] = true
			}
		}
		for _, span := range codeSpan.FindAllStringSubmatch(m[1], -1) {
			name := span[1][strings.LastIndex(span[1], ".")+1:]
			if !regexp.MustCompile(`^\w+$`).MatchString(name) || len(filesNamed(files, span[1])) > 0 || strings.ContainsAny(span[1], "./") && len(filesNamed(paths, span[1])) > 0 {
				continue
			}
			isMeant := func(of string) bool {
				return of == name || strings.HasPrefix(name, "Test") && strings.HasPrefix(of, name+"_")
			}
			if !slices.ContainsFunc(slices.Collect(maps.Keys(declared)), isMeant) {
				out = append(out, "`"+span[1]+"` of `"+m[2]+"`")
			}
		}
	}
	return out
}

// filesNamed returns the files that a page may mean by a name. The name is a path, the end of a path, or a folder.
func filesNamed(paths []string, name string) (out []string) {
	name = strings.TrimSuffix(name, "/")
	for _, path := range paths {
		if path == name || strings.HasSuffix(path, "/"+name) || strings.Contains("/"+filepath.Dir(path)+"/", "/"+name+"/") {
			out = append(out, path)
		}
	}
	return out
}

// declaredIn returns the names that a Go file declares, including local variables and texts in the code. For another file
// it returns all words.
func declaredIn(t *testing.T, path string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	if !strings.HasSuffix(path, ".go") {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, word := range regexp.MustCompile(`\w+`).FindAllString(string(text), -1) {
			out[word] = true
		}
		return out
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		var names []*ast.Ident
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.FuncDecl:
			names = append(names, n.Name)
		case *ast.TypeSpec:
			names = append(names, n.Name)
		case *ast.ValueSpec:
			names = append(names, n.Names...)
		case *ast.Field:
			names = append(names, n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, e := range n.Lhs {
					if id, ok := e.(*ast.Ident); ok {
						names = append(names, id)
					}
				}
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil {
				out[text] = true
			}
		}
		for _, id := range names {
			out[id.Name] = true
		}
		return true
	})
	return out
}

// trackedFiles returns the paths of the repository's files, without dependencies, generated code and caches of tools.
func trackedFiles(root string) (out []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", ".cache", "node_modules", "gen", "dist", "bin", "testdata"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		path, err = filepath.Rel(root, path)
		out = append(out, filepath.ToSlash(path))
		return err
	})
	return out, err
}
