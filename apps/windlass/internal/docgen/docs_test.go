package main

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/controlplane"
	"github.com/windlass-run/windlass/apps/gateway"
)

// pages are the Markdown files that people read, by their path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	files, err := filepath.Glob(repository + "/*.md")
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir(repository+"/docs", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == "node_modules" {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			files = append(files, path)
		}
		return err
	}))
	for _, path := range files {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		rel, err := filepath.Rel(repository, path)
		require.NoError(t, err)
		out[filepath.ToSlash(rel)] = string(data)
	}
	return out
}

var (
	fence = regexp.MustCompile("(?s)(?m:^) *```.*?\n *```(?m:$)")
	// A block may be indented, as in a list.
	shellBlock = regexp.MustCompile("(?s)(?m:^) *```sh\n(.*?\n) *```(?m:$)")
	span       = regexp.MustCompile("`[^`\n]*`")
	link       = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading    = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
)

func TestDocs(t *testing.T) {
	all := pages(t)
	t.Run("every link and anchor leads somewhere", func(t *testing.T) {
		for page, text := range all {
			for _, m := range link.FindAllStringSubmatch(span.ReplaceAllString(fence.ReplaceAllString(text, ""), ""), -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				path, fragment, _ := strings.Cut(m[1], "#")
				target := page
				if path != "" {
					target = filepath.Join(filepath.Dir(page), path)
					_, err := os.Stat(filepath.Join(repository, target))
					require.NoError(t, err, "%s links to %s", page, m[1])
				}
				if fragment == "" || !strings.HasSuffix(target, ".md") {
					continue
				}
				var anchors []string
				for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(all[target], ""), -1) {
					anchors = append(anchors, headingAnchor(strings.NewReplacer("`", "").Replace(h[1])))
				}
				require.Contains(t, anchors, fragment, "%s links to %s", page, m[1])
			}
		}
	})
	t.Run("troubleshooting has each reason and history entry once", func(t *testing.T) {
		src, err := readSource(repository)
		require.NoError(t, err)
		instances, err := src.constantsWithPrefix(runtimeDir, "Reason")
		require.NoError(t, err)
		rollouts, err := rolloutConstants(src)
		require.NoError(t, err)
		entries, err := historyEntries(src)
		require.NoError(t, err)
		want := map[string][]string{"Error reasons": errorNames()}
		var agents []string
		for _, c := range instances {
			agents = append(agents, c.value)
		}
		want["Instance reasons"] = agents
		for _, c := range rollouts {
			if !slices.Contains(agents, c.value) {
				want["Reasons of deployments, rollouts and regions"] = append(want["Reasons of deployments, rollouts and regions"], c.value)
			}
		}
		for _, e := range entries {
			want["History entries"] = append(want["History entries"], e.name)
		}
		want["Limits of scaling"] = scalingLimits(src)
		row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| .+ \\| .+ \\|$")
		for title, names := range want {
			_, section, ok := strings.Cut(all["docs/guides/troubleshooting.md"], "\n## "+title+"\n")
			require.True(t, ok, title)
			section, _, _ = strings.Cut(section, "\n## ")
			var got []string
			for _, m := range row.FindAllStringSubmatch(section, -1) {
				got = append(got, m[1])
			}
			require.ElementsMatch(t, names, got, title)
		}
	})
	t.Run("troubleshooting has each code of gateways once, with its status", func(t *testing.T) {
		src, err := readSource(repository)
		require.NoError(t, err)
		want, err := gatewayAnswers(src)
		require.NoError(t, err)
		_, section, ok := strings.Cut(all[troubleshooting], "\n## Answers of gateways\n")
		require.True(t, ok)
		section, _, _ = strings.Cut(section, "\n## ")
		var got []answer
		for line := range strings.SplitSeq(section, "\n") {
			if m := gatewayRow.FindStringSubmatch(line); m != nil {
				status, err := strconv.Atoi(m[2])
				require.NoError(t, err)
				got = append(got, answer{m[1], status})
			}
		}
		require.ElementsMatch(t, want, got)
	})
	t.Run("the guide has every variable that instances get from agents", func(t *testing.T) {
		src, err := readSource(repository)
		require.NoError(t, err)
		_, section, ok := strings.Cut(all["docs/guides/deploy.md"], "\n## What an instance sees\n")
		require.True(t, ok)
		section, _, _ = strings.Cut(section, "\n## ")
		variable := regexp.MustCompile(`^(WINDLASS_[A-Z_]+|PORT|(CUDA|NVIDIA)_VISIBLE_DEVICES)$`)
		found := map[string]bool{}
		for _, dir := range []string{runtimeDir, runtimeDir + "/process", runtimeDir + "/kubernetes/render"} {
			require.NotNil(t, src.packages[dir], dir)
			for _, f := range src.packages[dir].files {
				ast.Inspect(f, func(n ast.Node) bool {
					if e, ok := n.(ast.Expr); ok {
						if name, ok := literalText(e); ok && variable.MatchString(name) {
							found[name] = true
							require.Contains(t, section, "`"+name+"`", dir)
						}
					}
					return true
				})
			}
		}
		require.Greater(t, len(found), 15, "in which packages are these variables now?")
	})
	t.Run("the reference has every environment variable of commands", func(t *testing.T) {
		page := all["docs/reference/cli.md"]
		constants := regexp.MustCompile(`(?m)^\s*(?:const )?[eE]nv\w+\s*= "(\w+)"`)
		found := 0
		for _, dir := range []string{"cli", "clientconfig", "dev"} {
			files, err := filepath.Glob(repository + "/apps/windlass/internal/" + dir + "/*.go")
			require.NoError(t, err)
			for _, path := range files {
				text, err := os.ReadFile(path)
				require.NoError(t, err)
				for _, m := range constants.FindAllStringSubmatch(string(text), -1) {
					found++
					require.Contains(t, page, m[1], path)
				}
			}
		}
		require.Greater(t, found, 5)
	})
	t.Run("commands of shell blocks are commands with these flags", func(t *testing.T) {
		for page, text := range all {
			if strings.HasPrefix(page, "docs/reference/") {
				continue
			}
			for _, block := range shellBlock.FindAllStringSubmatchIndex(text, -1) {
				// Commands are parsed here. The whole-product tests run them.
				for line := range strings.SplitSeq(strings.ReplaceAll(text[block[2]:block[3]], "\\\n", " "), "\n") {
					checkLine(t, page, line)
				}
			}
		}
	})
}

// scalingLimits returns the values of the constants of type Limit in pkg/scaling, without the empty one.
func scalingLimits(s *source) (out []string) {
	for _, f := range s.packages["pkg/scaling"].files {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if name, ok := spec.Type.(*ast.Ident); ok && name.Name == "Limit" && len(spec.Values) == 1 {
				if text, ok := literalText(spec.Values[0]); ok && text != "" {
					out = append(out, text)
				}
			}
			return true
		})
	}
	return out
}

func TestExamples_AreLinkedFromAGuide(t *testing.T) {
	all := pages(t)
	examples := repository + "/deployments/examples"
	require.NoError(t, filepath.WalkDir(examples, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && (d.Name() == "bin" || d.Name() == "embeddings") {
				return filepath.SkipDir // programs of examples
			}
			return err
		}
		rel, err := filepath.Rel(repository, path)
		require.NoError(t, err)
		names := regexp.QuoteMeta(filepath.ToSlash(rel))
		if folder := filepath.Dir(rel); filepath.Base(folder) != "examples" {
			names += "|" + regexp.QuoteMeta(filepath.ToSlash(folder))
		}
		named, this := false, regexp.MustCompile("("+names+")[)`\\s]")
		for page, text := range all {
			named = named || !strings.HasPrefix(page, "docs/reference/") && this.MatchString(text)
		}
		require.True(t, named, "no page names %s or its folder", rel)
		return nil
	}))
}

// An example that is no app file must equal its block in the guide.
func TestExamples_AreTheTextOfTheirGuides(t *testing.T) {
	for file, guide := range map[string]string{
		"envoy/bootstrap.yaml": "xds", "nftables/windlass.nft": "bare-hosts",
		"helm/controlplane.yaml": "install", "helm/us-east-1.yaml": "install", "helm/gateway.yaml": "install",
	} {
		text, err := os.ReadFile(repository + "/deployments/examples/" + file)
		require.NoError(t, err)
		_, body, ok := strings.Cut(string(text), "\n") // after the comment
		require.True(t, ok, file)
		page, err := os.ReadFile(repository + "/docs/guides/" + guide + ".md")
		require.NoError(t, err)
		require.Contains(t, string(page), "\n"+body+"```\n", "%s differs from its block in %s.md", file, guide)
	}
}

// The example of a workflow is code that users copy.
func TestWorkflow(t *testing.T) {
	const path = "deployments/examples/github/deploy.yaml"
	text, err := os.ReadFile(repository + "/" + path)
	require.NoError(t, err)
	runs := regexp.MustCompile(`(?m)^ +run: (.+)$`).FindAllStringSubmatch(string(text), -1)
	require.Len(t, runs, 4)
	for _, run := range runs {
		checkLine(t, path, run[1])
	}
	for _, uses := range regexp.MustCompile(`uses: (\S+)`).FindAllStringSubmatch(string(text), -1) {
		require.Regexp(t, `@[0-9a-f]{40}$`, uses[1], "a tag can be moved to other code")
	}
}

var (
	nested  = regexp.MustCompile(`\$\(([^)]*)\)`)
	remark  = regexp.MustCompile(`\s+#.*$`)
	between = regexp.MustCompile(`\s*(?:&&|\|)\s*`)
	word    = regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
	// passed are the other commands that pages may use. Their arguments are not checked.
	passed = []string{"curl", "jq", "kill", "export", "cd", "printf", "git", "go", "./smoke-test", "bash", "npm", "openssl", "tee", "python3", "date", "age-keygen", "aws", "helm", "kubectl", "onnxclient"}
)

func checkLine(t *testing.T, page, line string) {
	t.Helper()
	line = remark.ReplaceAllString(line, "")
	for _, m := range nested.FindAllStringSubmatch(line, -1) {
		checkLine(t, page, m[1])
	}
	for _, command := range between.Split(nested.ReplaceAllString(line, "X"), -1) {
		command, _, _ = strings.Cut(command, " > ")
		words := word.FindAllString(command, -1)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		for i, w := range words {
			words[i] = strings.Trim(w, `"'`)
		}
		programs := map[string]func() (*kong.Application, error){
			"agent": agent.CommandLine, "gateway": gateway.CommandLine, "controlplane": controlplane.CommandLine,
		}
		switch model := programs[words[0]]; {
		case words[0] == "windlass":
			c, rest, err := rootCommand().Find(words[1:])
			require.NoError(t, err, "%s: %s", page, line)
			require.NoError(t, c.ParseFlags(rest), "%s: %s", page, line)
			if c.Args != nil {
				require.NoError(t, c.Args(c, c.Flags().Args()), "%s: %s", page, line)
			}
		case model != nil:
			app, err := model()
			require.NoError(t, err)
			node := app.Node
			for _, w := range words[1:] {
				if n := slices.IndexFunc(node.Children, func(c *kong.Node) bool { return c.Name == w }); n >= 0 {
					node = node.Children[n]
				}
			}
			var names []string
			for _, group := range node.AllFlags(false) {
				for _, f := range group {
					names = append(names, f.Name)
				}
			}
			for _, w := range words[1:] {
				if name, ok := strings.CutPrefix(w, "--"); ok {
					name, _, _ = strings.Cut(name, "=")
					require.Contains(t, names, name, "%s: %s", page, line)
				}
			}
		case words[0] == "go" && len(words) > 3 && words[1] == "tool" && words[2] == "task":
			tasks, err := os.ReadFile(repository + "/Taskfile.yml")
			require.NoError(t, err)
			require.Contains(t, string(tasks), "\n  "+words[3]+":\n", "%s: %s", page, line)
		default:
			require.Contains(t, passed, words[0], "%s: %s", page, line)
		}
	}
}

func TestExplainedIn_SeesTheSentenceBeforeTheTable(t *testing.T) {
	entries, err := explainedIn("# Reasons\n\n## Instance reasons\n\nWhere to see one: `windlass status NAME`.\n\n| reason | cause | what to do |\n|---|---|---|\n| `Lost` | it is gone | nothing |\n")
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, "`windlass status NAME`", entries[0].See)
}
