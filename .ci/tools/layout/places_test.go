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

// place is a set of files that must name each thing of a kind, such as each strategy. No compiler and no other test
// checks that.
type place struct {
	// files is a pattern of paths for readFiles. One of the files must have the name.
	files string
	// form is a regular expression that contains NAME instead of the name.
	form string
	// why is printed with a name that is missing.
	why string
	// spared are the names that the place need not have, each with the reason.
	spared map[string]string
}

const (
	noSteps   = "it has no steps"
	forAll    = "every workspace may use it"
	runsBoth  = "both versions run at once"
	byFlag    = "tests start agents without --runtime, too"
	isHost    = "it is called a host there"
	isNothing = "it runs nothing"
)

// A new thing is missing in these places at first. Add it to spared for a place that does not need it.
var (
	strategyPlaces = []place{
		{"apps/controlplane/internal/plan/testdata/*", `strategy=NAME\b`, "write a script for it", nil},
		{"apps/controlplane/internal/plan/forecast/forecast_test.go", `STRATEGY_NAME\b`, "forecast it", map[string]string{"ROLLING": "it is the default"}},
		{"apps/controlplane/internal/plan/straight_test.go", `Strategy: windlassv1\.RolloutPolicy_STRATEGY_NAME\b`, "test a rollback without it", map[string]string{"RECREATE": noSteps, "IN_PLACE": noSteps}},
		{"apps/controlplane/internal/api/plan_test.go", `Strategy: windlassv1\.RolloutPolicy_STRATEGY_NAME\b|"NAME": +\{MaxSurge`, "compare its plan with the result of a deploy", nil},
		{"apps/e2e/strategies_fleet_test.go", `STRATEGY_NAME\b`, "let the fleet use it for a rollout", nil},
		{"apps/e2e/gateway_test.go", `STRATEGY_NAME\b`, "send requests during a rollout with it", map[string]string{"ROLLING": "it is the default", "RECREATE": "nothing serves meanwhile"}},
		{"docs/guides/rollouts.md", `strategy: NAME\b|\bor NAME: `, "describe it", nil},
		{"apps/controlplane/internal/appspec/features.go", `STRATEGY_NAME\b`, "let operators deny it to workspaces, as a feature", map[string]string{"ROLLING": forAll, "RECREATE": forAll, "IN_PLACE": forAll}},
		{"docs/guides/rollouts.md", `replaces another by .*\bNAME\b`, "say that it replaces a fixed port", sparedBoth},
		{"docs/guides/troubleshooting.md", `\| .PortInUse. \|.*\bNAME\b`, "say that it replaces a fixed port", sparedBoth},
		{"docs/glossary.md", `\| strategy \|.*\bNAME\b`, "name it", nil},
		{"docs/glossary.md", `\| step \|.*\bNAME\b`, "say what its steps are", map[string]string{"ROLLING": noSteps, "RECREATE": noSteps, "IN_PLACE": noSteps}},
	}
	sparedBoth = map[string]string{"ROLLING": runsBoth, "CANARY": runsBoth, "BLUE_GREEN": runsBoth}

	featurePlaces = []place{
		{"docs/guides/quotas.md", "(?m)^\\| .*`NAME`.* \\| .* \\| .* \\|$", "describe it", nil},
	}
	runtimePlaces = []place{
		{"apps/agent/main.go", `enum:"[^"]*\bNAME\b[^"]*" default:"process"`, "allow it as a value of --runtime", nil},
		{"apps/agent/main.go", `(case|f\.Runtime ==) "NAME"`, "make it", nil},
		{"apps/controlplane/internal/model/runtime.go", `"NAME"`, "say what its regions are", nil},
		{"apps/e2e/*_test.go", `runtime: +"NAME"`, "start an agent with it", map[string]string{"process": byFlag}},
		{"proto/windlass/agent/v1/agent.proto", `// .*"NAME"`, "name it at AgentInfo.runtime", nil},
		{"docs/architecture.md", `runtime/\{.*\bNAME\b.*\}`, "list its package", nil},
		{"docs/architecture.md", `\| position \|.*\bNAME\b`, "say what a position in a log is", map[string]string{"simulated": isNothing}},
		{"docs/architecture.md", `\| CPU and memory \|.*\bNAME\b`, "say what measures its instances", map[string]string{"simulated": isNothing}},
		{"docs/guides/*.md", `(?m)^(?:sudo )?agent .*--runtime[= ]NAME\b`, "say how an agent with it is started", map[string]string{"process": "it is the default", "simulated": isNothing}},
		{"docs/guides/logs.md", `\| time of a line \|.*\bNAME\b`, "say how exact the times of its logs are", map[string]string{"simulated": isNothing}},
		{"docs/guides/roles.md", `(?m)^\| NAME \|`, "say how it runs groups", map[string]string{"simulated": isNothing}},
		{"docs/security-model.md", `(?m)^\| NAME\b`, "say in Shared regions what it isolates", map[string]string{"process": isHost, "simulated": isNothing}},
		{"proto/windlass/v1/spec.proto", `(?s)// Time from the removal from routes[^;]*\bNAME region`, "say what drain_delay is by default", map[string]string{"simulated": isNothing}},
	}
	rpcPlaces = []place{
		{"apps/windlass/internal/cli/*.go", `\.NAME\b`, "call it in a command", map[string]string{
			"CreateApp": "deploy makes apps", "UpdateApp": "only the API sets the description",
			"WatchFleet": "only the dashboard uses it",
		}},
		{"apps/controlplane/internal/api/*_test.go", `\.NAME\(`, "test its answers and its refusals", nil},
	}
	listPlaces = []place{
		{"apps/controlplane/internal/store/storetest/pages.go", `tx\.NAME\(`, "test reading it page by page", nil},
	}
	errorPlaces = []place{
		{"apps/**/*_test.go", `ERROR_REASON_NAME\b`, "test that a call is refused with it", map[string]string{"INTERNAL": "pkg/rpc gives it to every error without a reason"}},
	}
	numericTextPlaces = []place{
		{"apps/dashboard/src/model/appfile.ts", `"NAME"`, "let the dashboard read a number there like the CLI", nil},
	}
	reasonPlaces = []place{
		{"apps/agent/**/*.go", `runtime\.ReasonNAME\b`, "give it to an instance or a rejection", nil},
		{"apps/agent/**/*_test.go", `\bReasonNAME\b|"NAME"`, "test when an instance has it", nil},
	}
)

func TestPlaces_NameEveryThingOfTheirKind(t *testing.T) {
	root, err := Root(".")
	require.NoError(t, err)
	missing := func(kind string, names []string, places []place) {
		require.NotEmpty(t, names, kind)
		for _, p := range places {
			files := readFiles(t, root, p.files)
			for _, name := range names {
				named := slices.ContainsFunc(slices.Collect(maps.Values(files)), regexp.MustCompile(formOf(p.form, name)).MatchString)
				_, spared := p.spared[name]
				if spared && named {
					t.Errorf("%s names %s %s: remove it from spared", p.files, kind, name)
				}
				if !spared && !named {
					t.Errorf("%s has no %s: %s (docs/contributing)", p.files, formOf(p.form, name), p.why)
				}
			}
		}
	}
	// namesIn returns the names that the form finds in the files.
	namesIn := func(files, form string) (names []string) {
		for _, text := range readFiles(t, root, files) {
			for _, m := range regexp.MustCompile(form).FindAllStringSubmatch(text, -1) {
				names = append(names, m[1])
			}
		}
		return slices.Sorted(slices.Values(names))
	}
	var ofRuntimes []string
	for _, tree := range runtimes {
		ofRuntimes = append(ofRuntimes, filepath.Base(filepath.Dir(tree)))
	}
	missing("strategy", namesIn("proto/windlass/v1/rollout.proto", `(?m)^    STRATEGY_(\w+) = [1-9]`), strategyPlaces)
	missing("feature", namesIn("proto/windlass/v1/workspace.proto", `(?m)^  FEATURE_(\w+) = [1-9]`), featurePlaces)
	missing("runtime", ofRuntimes, runtimePlaces)
	missing("RPC", namesIn("proto/windlass/v1/*.proto", `(?m)^  rpc (\w+)\(`), rpcPlaces)
	missing("list", namesIn("apps/controlplane/internal/store/store.go", `(?m)^\t(\w+)\((?:.* )?Page\)`), listPlaces)
	missing("text that may be a number", namesIn("apps/windlass/internal/cli/scalar.go", `(?m)^\t"(windlass\.v1\.\w+\.\w+)": +(?:true|false),$`), numericTextPlaces)
	missing("error reason", namesIn("proto/windlass/v1/common.proto", `(?m)^  ERROR_REASON_(\w+) = [1-9]`), errorPlaces)
	missing("instance reason", namesIn("apps/agent/internal/runtime/runtime.go", `(?m)^\tReason\w+ += "(\w+)"`), reasonPlaces)
}

// formOf returns the form with the name in place of NAME. It matches all spellings: STRATEGY_BLUE_GREEN,
// strategy=blue_green, blueGreen, blue-green or "blue green".
func formOf(form, name string) string {
	return strings.ReplaceAll(form, "NAME", "(?i:"+strings.ReplaceAll(name, "_", "[-_ ]?")+")")
}

// readFiles returns the files that match the pattern, by path. "/**/" in a pattern means any number of folders. Test
// files match a pattern with "/**/" only if it ends in _test.go.
func readFiles(t *testing.T, root, pattern string) map[string]string {
	t.Helper()
	tree, name, deep := strings.Cut(pattern, "/**/")
	paths, err := filepath.Glob(filepath.Join(root, pattern))
	if deep {
		paths, err = filesBelow(filepath.Join(root, tree), name)
	}
	require.NoError(t, err)
	require.NotEmpty(t, paths, pattern)
	out := map[string]string{}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			continue // such as testdata/rapid, in which rapid keeps failed draws
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		out[path] = string(text)
	}
	return out
}

func TestReadFiles_SkipsFolders(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "testdata", "rapid"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(root, "testdata", "01_rolling"), []byte("strategy=rolling"), 0o600))
	require.Equal(t, map[string]string{filepath.Join(root, "testdata", "01_rolling"): "strategy=rolling"}, readFiles(t, root, "testdata/*"))
}

// filesBelow returns the files in the tree whose names match the pattern.
func filesBelow(tree, pattern string) (paths []string, err error) {
	err = filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && d.Name() == "node_modules" {
				return fs.SkipDir
			}
			return err
		}
		const test = "_test.go"
		match, err := filepath.Match(pattern, d.Name())
		if match && strings.HasSuffix(pattern, test) == strings.HasSuffix(d.Name(), test) {
			paths = append(paths, path)
		}
		return err
	})
	return paths, err
}

// The planner treats an unknown reason as a crash, without an error.
func TestReasons_HaveAMeaning(t *testing.T) {
	root, err := Root(".")
	require.NoError(t, err)
	parse := func(path string) *ast.File {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		return f
	}
	literal := func(e ast.Expr) string {
		text, err := strconv.Unquote(e.(*ast.BasicLit).Value)
		require.NoError(t, err)
		return text
	}
	var agents, known, unplaced []string
	ast.Inspect(parse("apps/agent/internal/runtime/runtime.go"), func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Reason") && len(v.Values) == 1 {
			agents = append(agents, literal(v.Values[0]))
		}
		return true
	})
	ast.Inspect(parse("apps/controlplane/internal/rollup/reasons.go"), func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || v.Names[0].Name != "agentReasons" {
			return true
		}
		for _, e := range v.Values[0].(*ast.CompositeLit).Elts {
			row := e.(*ast.KeyValueExpr)
			known = append(known, literal(row.Key))
			for _, field := range row.Value.(*ast.CompositeLit).Elts {
				if value, ok := field.(*ast.KeyValueExpr).Value.(*ast.Ident); ok && value.Name == "unschedulable" {
					unplaced = append(unplaced, literal(row.Key))
				}
			}
		}
		return false
	})
	require.NotEmpty(t, agents)
	require.ElementsMatch(t, agents, known, "reasons of apps/agent/internal/runtime/runtime.go, and agentReasons of apps/controlplane/internal/rollup/reasons.go")

	var listed []string
	for _, text := range readFiles(t, root, "proto/windlass/v1/rollout.proto") {
		found := regexp.MustCompile(`There is no room for an instance \(([\w, ]+)\)\.\s+CONDITION_UNSCHEDULABLE`).FindStringSubmatch(text)
		require.NotNil(t, found)
		listed = strings.Split(found[1], ", ")
	}
	require.ElementsMatch(t, unplaced, listed, "reasons with unschedulable, and the comment of CONDITION_UNSCHEDULABLE in proto/windlass/v1/rollout.proto")
}
