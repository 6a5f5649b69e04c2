package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	packageRow = regexp.MustCompile("(?m)^\\| `pkg/(\\w+)` \\|")
	// example matches an example that `go test` runs, which is an example with an Output comment.
	example = regexp.MustCompile(`(?s)\nfunc Example\w*\(\) \{.*?\n\t// (Unordered output|Output):`)
)

// A person who imports a package of this repository starts from its example.
func TestPackages_ForOthersHaveExamples(t *testing.T) {
	root, err := Root(".")
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(page), "\n## Packages for other programs\n")
	require.True(t, ok, "docs/architecture.md lists the packages of pkg for other programs")
	section, _, _ = strings.Cut(section, "\n## ")
	var named []string
	for _, m := range packageRow.FindAllStringSubmatch(section, -1) {
		named = append(named, m[1])
	}
	files, err := filepath.Glob(filepath.Join(root, "pkg/*/*_test.go"))
	require.NoError(t, err)
	var have []string
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if name := filepath.Base(filepath.Dir(path)); example.Match(text) && !slices.Contains(have, name) {
			have = append(have, name)
		}
	}
	slices.Sort(have)
	require.Equal(t, have, named, "the table names the packages with a runnable example, sorted, and no others")
}
