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
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// phrases are phrases that are hard to read, with the words to write instead. A space also
// matches the end of a comment's line.
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
	{phrase(`\b(was|were) told\b`), `name the message: "received", "has the route", "was marked"`, "what the agent was told"},
	{phrase(`\bwhat there is\b`), `name the thing`, "reads what there is"},
	{phrase(`\bweb-hooks?\b`), `"webhook", as in the API`, "a web-hook judges"},
}

func phrase(words string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)` + strings.ReplaceAll(words, " ", `(?:\s|//|--)+`))
}

// otherWords are the files and folders whose texts are not checked.
var otherWords = []string{
	"db/gen", "proto/gen", // generated
	"db/migrations",                                                       // migrations that have run do not change
	".ci/tools/layout/language_test.go", ".ci/tools/layout/tests_test.go", // they list the words
}

// readable are the extensions of files that people read and write. Scripts of .ci have no extension.
var readable = []string{".go", ".proto", ".sql", ".md", ".sh", ".yaml", ".yml", ".tpl", ".ts", ".tsx", ".mjs", ".css", ""}

// Code is read by strangers, most of whom learned English as a second language.
func TestPhrases_AreNotInCode(t *testing.T) {
	root, err := Root(".")
	require.NoError(t, err)
	for _, top := range []string{".ci", "apps", "db", "deployments", "docs", "pkg", "proto", "README.md", "CONTRIBUTING.md", "SECURITY.md", "Taskfile.yml", ".golangci.yml"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			other := slices.Contains(otherWords, filepath.ToSlash(name))
			if d.IsDir() {
				if other || name != top && strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"node_modules", "testdata", "dist"}, d.Name()) {
					return fs.SkipDir
				}
				return nil
			}
			if other || !d.Type().IsRegular() || !slices.Contains(readable, filepath.Ext(name)) {
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

// A reader who sees "move(" should find it in one place of the package. Exported names may be both a function and a
// method, because a package may have a function for its default value, as log.Print is for log.Default().Print.
func TestFunctions_AreNotNamedLikeMethodsOfTheirPackage(t *testing.T) {
	_, packages := workspace(t)
	for _, p := range packages {
		var files []*ast.File
		fset := token.NewFileSet()
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			files = append(files, f)
		}
		for _, fn := range namedLikeMethods(files) {
			t.Errorf("%s: %s is a method of this package, too: name the function by a verb and its object", fset.Position(fn.Pos()), fn.Name.Name)
		}
	}
}

// namedLikeMethods returns the unexported functions of a package that have the name of one of its methods.
func namedLikeMethods(files []*ast.File) []*ast.FuncDecl {
	methods := map[string]bool{}
	var functions []*ast.FuncDecl
	for _, f := range files {
		for _, decl := range f.Decls {
			switch fn, ok := decl.(*ast.FuncDecl); {
			case !ok || fn.Name.IsExported():
			case fn.Recv != nil:
				methods[fn.Name.Name] = true
			default:
				functions = append(functions, fn)
			}
		}
	}
	return slices.DeleteFunc(functions, func(fn *ast.FuncDecl) bool { return !methods[fn.Name.Name] })
}

func TestFunctions_NamedLikeMethodsAreFound(t *testing.T) {
	var files []*ast.File
	for _, text := range []string{"func move() {}\nfunc faultOf() {}\nfunc All() {}\nfunc one() {}", "type T int\nfunc (T) move() {}\nfunc (T) faultOf() {}\nfunc (T) All() {}"} {
		f, err := parser.ParseFile(token.NewFileSet(), "a.go", "package a\n"+text+"\n", parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, f)
	}
	var found []string
	for _, fn := range namedLikeMethods(files) {
		found = append(found, fn.Name.Name)
	}
	require.Equal(t, []string{"move", "faultOf"}, found)
}

// mostOneWordNames is the maximum share of functions whose name is one word in lower case, such as "place". In Go projects
// that are easy to read, it is 2 to 10 %. Such a name is right for an operation that every reader knows: open, run, parse.
const mostOneWordNames = 0.08

func TestFunctions_HaveNamesThatSayWhatTheyDo(t *testing.T) {
	_, packages := workspace(t)
	all, short := 0, map[string]int{}
	for _, p := range packages {
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution|parser.ParseComments)
			require.NoError(t, err)
			if ast.IsGenerated(f) {
				continue
			}
			for _, decl := range f.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || fn.Name.Name == "main" || fn.Name.Name == "init" {
					continue
				}
				all++
				if strings.ToLower(fn.Name.Name) == fn.Name.Name {
					short[p.Path]++
				}
			}
		}
	}
	total := 0
	for _, n := range short {
		total += n
	}
	if share := float64(total) / float64(all); share > mostOneWordNames {
		paths := slices.SortedFunc(maps.Keys(short), func(a, b string) int { return short[b] - short[a] })
		t.Errorf("%d of %d functions have a name of one word, which is %.1f %%: name new ones by a verb and its object. Most are in %s",
			total, all, 100*share, strings.Join(paths[:min(5, len(paths))], ", "))
	}
}

// longestSentence is the maximum length of a sentence in words. Shorter sentences are better.
const longestSentence = 35

// Readers have to read a long sentence twice.
func TestComments_HaveShortSentences(t *testing.T) {
	root, err := Root(".")
	require.NoError(t, err)
	_, packages := workspace(t)
	for _, p := range packages {
		for _, file := range slices.Concat(p.GoFiles, p.TestFiles) {
			path := filepath.Join(p.Dir, file)
			name, err := filepath.Rel(root, path)
			require.NoError(t, err)
			if slices.ContainsFunc(otherWords, func(dir string) bool { return strings.HasPrefix(name, dir+"/") }) {
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
			require.NoError(t, err)
			for _, group := range f.Comments {
				for _, c := range paragraphs(group) {
					for _, s := range longSentences(c.text) {
						t.Errorf("%s:%d: a sentence of more than %d words: %q", name, fset.Position(c.at).Line, longestSentence, s)
					}
				}
			}
		}
	}
}

// paragraph is a paragraph of a comment, without markers. Every item of a list is a paragraph.
type paragraph struct {
	text string
	at   token.Pos
}

// paragraphs returns the paragraphs of a comment, without code, tables and directives.
func paragraphs(group *ast.CommentGroup) []paragraph {
	var out []paragraph
	open := false
	for _, c := range group.List {
		text, ok := strings.CutPrefix(c.Text, "// ")
		item := strings.HasPrefix(strings.TrimSpace(text), "- ")
		if !ok || strings.HasPrefix(text, "  ") && !item && !open || strings.TrimSpace(text) == "" {
			open = false
			continue
		}
		if !open || item {
			out = append(out, paragraph{at: c.Pos()})
			open = true
		}
		last := &out[len(out)-1]
		last.text += " " + strings.TrimPrefix(strings.TrimSpace(text), "- ")
	}
	return out
}

var sentenceEnd = regexp.MustCompile("[.:;?!][\"')`]*(?:\\s+|$)")

func longSentences(text string) []string {
	return slices.DeleteFunc(sentenceEnd.Split(text, -1), func(s string) bool { return len(strings.Fields(s)) <= longestSentence })
}

func TestComments_LongSentencesAreFound(t *testing.T) {
	long := strings.Repeat("word ", longestSentence)
	for _, text := range []string{"// " + long + "end.", "// First.\n// " + long + "\n// end.", "//   - " + long + "\n//     end"} {
		require.Len(t, longIn(t, text), 1, text)
	}
	for _, text := range []string{"// " + long + ". " + long + ".", "// " + long + "\n//   - " + long, "//\t" + long + long, "//go:generate " + long + long} {
		require.Empty(t, longIn(t, text), text)
	}
}

func longIn(t *testing.T, comment string) (found []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "a.go", comment+"\npackage a\n", parser.ParseComments)
	require.NoError(t, err)
	for _, group := range f.Comments {
		for _, c := range paragraphs(group) {
			found = append(found, longSentences(c.text)...)
		}
	}
	return found
}

func TestPhrases_AreFound(t *testing.T) {
	for _, p := range phrases {
		require.Regexp(t, p.pattern, p.example)
		require.NotRegexp(t, p.pattern, p.instead)
	}
}
