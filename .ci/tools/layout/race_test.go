package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// .ci/test runs packages without the race detector if they have no concurrent code.
func TestRaceDetector_IsLeftOutOnlyWithoutGoroutines(t *testing.T) {
	root, packages := workspace(t)
	script, err := os.ReadFile(filepath.Join(root, ".ci", "test"))
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^plain='(.*)'$`).FindSubmatch(script)
	require.NotNil(t, found, ".ci/test names them in a line plain='...'")
	plain, err := regexp.Compile(string(found[1]))
	require.NoError(t, err)
	matched := 0
	for _, p := range packages {
		if !plain.MatchString(Prefix + p.Path) {
			continue
		}
		matched++
		for _, name := range slices.Concat(p.GoFiles, p.TestFiles) {
			for _, why := range concurrent(t, filepath.Join(p.Dir, name)) {
				t.Errorf("%s: .ci/test runs this package without the race detector", why)
			}
		}
	}
	require.Greater(t, matched, 5, "packages that match %s", plain)
}

func TestRaceDetector_ConcurrentCodeIsFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made.go")
	require.NoError(t, os.WriteFile(path, []byte("package made\n\nimport _ \"sync/atomic\"\n\nfunc f() { go f() }\n"), 0o600))
	require.Len(t, concurrent(t, path), 2)
}

// concurrent returns the places of a file that start a goroutine, or import a package for sharing data between
// goroutines.
func concurrent(t *testing.T, path string) (places []string) {
	t.Helper()
	for _, imported := range []string{"sync", "sync/atomic", "golang.org/x/sync/errgroup"} {
		if imports(t, path, imported) {
			places = append(places, path+" imports "+imported)
		}
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		if g, ok := n.(*ast.GoStmt); ok {
			places = append(places, fset.Position(g.Pos()).String()+": go statement")
		}
		return true
	})
	return places
}
