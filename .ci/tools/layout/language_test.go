package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// phrases are the ones that make a reader stop, with the words to write instead. A space
// matches the end of a comment's line, too.
var phrases = []struct {
	pattern *regexp.Regexp
	instead string
	example string
}{
	{phrase(`\btells? whether\b`), `a function that returns bool "reports whether"`, "// ok tells\n\t// whether it is"},
	{regexp.MustCompile(`[Nn]obody`), `name what is missing: "without an approval", "has no owner", "is not read"`, "TestThatNobodyWaits"},
	{phrase(`whoever`), `name the caller, the process, the agent or the transaction`, "Whoever asks"},
	{phrase(`\bso many\b`), `name the argument or the number: "n replicas", "at most limit rows"`, "has so\n-- many rows"},
	{phrase(`\b(is|are|was|were) to (be|have)\b`), `"will be", "must be", "should have", or a plain verb`, "rows that are to be sent"},
}

func phrase(words string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)` + strings.ReplaceAll(words, " ", `(?:\s|//|--)+`))
}

// otherWords are the folders whose texts are not held to this.
var otherWords = []string{
	"db/gen", "proto/gen", // generated
	"db/migrations", // a migration that has run stays as it is
}

// Code is read by strangers, most of whom learned English as a second language.
func TestCodeSpeaksPlainly(t *testing.T) {
	root, err := Root(".")
	require.NoError(t, err)
	for _, top := range []string{"apps", "db", "pkg", "proto"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			if d.IsDir() {
				if slices.Contains(otherWords, filepath.ToSlash(name)) || strings.HasPrefix(d.Name(), ".") {
					return fs.SkipDir
				}
				return nil
			}
			if !slices.Contains([]string{".go", ".proto", ".sql"}, filepath.Ext(name)) {
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, p := range phrases {
				for _, at := range p.pattern.FindAllIndex(text, -1) {
					line := 1 + strings.Count(string(text[:at[0]]), "\n")
					t.Errorf("%s:%d: %q: instead, %s", name, line, text[at[0]:at[1]], p.instead)
				}
			}
			return nil
		}))
	}
}

func TestEveryPhraseIsFound(t *testing.T) {
	for _, p := range phrases {
		require.Regexp(t, p.pattern, p.example)
		require.NotRegexp(t, p.pattern, p.instead)
	}
}
