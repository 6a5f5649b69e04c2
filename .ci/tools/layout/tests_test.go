package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// longestTestName is the maximum length of a name in letters, including Test.
const longestTestName = 60

// mostSubjectWords is the maximum number of words in a name before its _, or in a name without _.
const mostSubjectWords = 3

// noSubject are words that begin a sentence and do not name a subject.
var noSubject = strings.Fields(`A After All Also An Another Any Are As At Because Before Between Both But By Can Does During Each
	Either Even Every Few For From Half Has He How However If In Is It Its Many More Most Neither No Nobody None Not Nothing Of On Once One
	Only Or Other Others Over Same She Since So Some Someone Something Still Such That The There These They This Those Three Through
	To Too Two Under Until Upon What Whatever When Whenever Where Which While Who Whoever Whose Why With Within Without`)

// abandoned are words that tests no longer use for fixtures. docs/contributing lists the words in use.
var abandoned = map[string]string{
	"bench": "harness", "house": "harness", "lab": "cluster", "rig": "harness", "scene": "fixture or simulation", "town": "fleet",
	"world": "fleet, harness, simulation or fixture",
}

// testNameFault returns the fault of a test's name, or "". A name must begin with a subject, so that -run Subject finds
// it.
func testNameFault(name string) string {
	rest, ok := strings.CutPrefix(name, "Test")
	if !ok || rest == "" || unicode.IsLower(rune(rest[0])) {
		return ""
	}
	for _, w := range noSubject {
		if strings.HasPrefix(rest, "ACME") || strings.HasPrefix(rest, "API") {
			break
		}
		if after, ok := strings.CutPrefix(rest, w); ok && (after == "" || !unicode.IsLower(rune(after[0]))) {
			return "it begins with " + w + ": begin with the subject, as in TestFreeze_HoldsARollout"
		}
	}
	if len(name) > longestTestName {
		return "it is too long: name the guarantee in fewer words, and the cases in subtests"
	}
	subject, guarantee, separated := strings.Cut(rest, "_")
	if len(camelWords(subject)) > mostSubjectWords {
		return "its subject has more than three words: separate the guarantee by _, as in TestFreeze_HoldsARollout"
	}
	if separated && (guarantee == "" || unicode.IsLower(rune(guarantee[0]))) {
		return "its guarantee does not begin with a capital letter, as in TestFreeze_HoldsARollout"
	}
	return ""
}

// fixtureFault returns the fault of a type's name that has an abandoned word, or "".
func fixtureFault(name string) string {
	for _, w := range camelWords(name) {
		if instead, ok := abandoned[w]; ok {
			return "fixtures are not called " + w + ": " + instead
		}
	}
	return ""
}

// camelWords returns the words of a name, in lower case.
func camelWords(name string) (words []string) {
	start := 0
	runes := []rune(name)
	for i := 1; i <= len(runes); i++ {
		if i == len(runes) || unicode.IsUpper(runes[i]) && !unicode.IsUpper(runes[i-1]) {
			words = append(words, strings.ToLower(string(runes[start:i])))
			start = i
		}
	}
	return words
}

// A reader should be able to guess the names of tests and of their fixtures.
func TestTests_HaveGuessableNames(t *testing.T) {
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
			ofTests := strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".go") && strings.HasSuffix(filepath.Base(filepath.Dir(path)), "test")
			if d.IsDir() || !ofTests {
				return nil
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, decl := range f.Decls {
				switch decl := decl.(type) {
				case *ast.FuncDecl:
					if fault := testNameFault(decl.Name.Name); decl.Recv == nil && fault != "" {
						t.Errorf("%s: %s: %s", fset.Position(decl.Pos()), decl.Name.Name, fault)
					}
				case *ast.GenDecl:
					for _, spec := range decl.Specs {
						if spec, ok := spec.(*ast.TypeSpec); ok && fixtureFault(spec.Name.Name) != "" {
							t.Errorf("%s: %s: %s", fset.Position(spec.Pos()), spec.Name.Name, fixtureFault(spec.Name.Name))
						}
					}
				}
			}
			return nil
		}))
	}
}

func TestTests_NameFaultsAreFound(t *testing.T) {
	for _, name := range []string{"TestARefusal", "TestItServes", "TestA", "TestNoRollout_Hangs", "TestHoweverLong_Waits", "TestFreezeHoldsARolloutUntilItEnds", "TestFreezeOfEveryRegion_Holds", "TestFreeze_", "TestFreeze_holds", "TestFreeze_" + strings.Repeat("x", longestTestName)} {
		require.NotEmpty(t, testNameFault(name), name)
	}
	for _, name := range []string{"TestAnalysis", "TestFreeze_HoldsARollout", "TestACME_Renews", "TestNotices", "TestAPIServer_Restarts", "TestHTTP2", "TestMain", "Testify", "BenchmarkAll"} {
		require.Empty(t, testNameFault(name), name)
	}
	for _, name := range []string{"world", "devHouse", "memoryRig", "Lab", "fakeLab"} {
		require.NotEmpty(t, fixtureFault(name), name)
	}
	for _, name := range []string{"harness", "labels", "worlds", "origin", "stack"} {
		require.Empty(t, fixtureFault(name), name)
	}
}
