package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
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

// A place is where each thing of a kind has to be named, and no compiler or other test asks for it.
type place struct {
	// files is a pattern of paths. One of them has the name.
	files string
	// form is a regular expression with NAME in the place of the name.
	form string
	// why is printed with a name that is missing.
	why string
	// spared are the names that need not be there, each with the reason.
	spared map[string]string
}

const (
	noSteps = "it has no steps"
	byFlag  = "tests start agents without --runtime, too"
)

// A new strategy, runtime or RPC is missing in these places at first.
var (
	strategyPlaces = []place{
		{"apps/controlplane/internal/plan/testdata/*", `strategy=NAME\b`, "write a script for it", nil},
		{"apps/controlplane/internal/plan/forecast/forecast_test.go", `STRATEGY_NAME\b`, "forecast it", map[string]string{"ROLLING": "it is the default"}},
		{"apps/controlplane/internal/plan/straight_test.go", `Strategy: windlassv1\.RolloutPolicy_STRATEGY_NAME\b`, "say what the way back is without", map[string]string{"RECREATE": noSteps, "IN_PLACE": noSteps}},
		{"apps/controlplane/internal/api/plan_test.go", `Strategy: windlassv1\.RolloutPolicy_STRATEGY_NAME\b|"NAME": +\{MaxSurge`, "compare its plan with what a deploy does", nil},
		{"apps/e2e/strategies_fleet_test.go", `STRATEGY_NAME\b`, "let the fleet move by it", nil},
		{"apps/e2e/gateway_test.go", `STRATEGY_NAME\b`, "send requests while it moves", map[string]string{"ROLLING": "it is the default", "RECREATE": "nothing serves meanwhile"}},
		{"docs/guides/rollouts.md", `strategy: NAME\b|\bor NAME: `, "describe it", nil},
		{"docs/glossary.md", `\| strategy \|.*\bNAME\b`, "name it", nil},
	}
	runtimePlaces = []place{
		{"apps/agent/main.go", `enum:"[^"]*\bNAME\b[^"]*" default:"process"`, "let --runtime choose it", nil},
		{"apps/agent/main.go", `(case|f\.Runtime ==) "NAME"`, "make it", nil},
		{"apps/controlplane/internal/model/runtime.go", `"NAME"`, "say what its regions are", nil},
		{"apps/e2e/*_test.go", `runtime: +"NAME"`, "start an agent with it", map[string]string{"process": byFlag}},
		{"proto/windlass/agent/v1/agent.proto", `// .*"NAME"`, "name it at AgentInfo.runtime", nil},
		{"docs/architecture.md", `runtime/\{.*\bNAME\b.*\}`, "list its package", nil},
	}
	rpcPlaces = []place{
		{"apps/windlass/internal/cli/*.go", `\.NAME\b`, "call it in a command", map[string]string{
			"CreateApp": "deploy makes apps", "UpdateApp": "the description is the API's alone", "RenderPreset": "the program has presets itself",
			"WatchFleet":    "it is the dashboard's",
			"CreateProject": onlyAPI, "GetProject": onlyAPI, "ListProjects": onlyAPI, "UpdateProject": onlyAPI, "DeleteProject": onlyAPI,
			"CreateEnvironment": onlyAPI, "ListEnvironments": onlyAPI, "DeleteEnvironment": onlyAPI,
			"CreateWorkspace": onlyAPI, "GetWorkspace": onlyAPI, "ListWorkspaces": onlyAPI, "UpdateWorkspace": onlyAPI, "DeleteWorkspace": onlyAPI,
			"UpdateRegion": onlyAPI,
		}},
	}
)

const onlyAPI = "it has no command yet"

func TestPlaces_NameEveryStrategyRuntimeAndRPC(t *testing.T) {
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
					t.Errorf("%s names %s %s: it need not be spared", p.files, kind, name)
				}
				if !spared && !named {
					t.Errorf("%s has no %s: %s (docs/contributing)", p.files, formOf(p.form, name), p.why)
				}
			}
		}
	}
	var strategies, names, rpcs []string
	for _, text := range readFiles(t, root, "proto/windlass/v1/rollout.proto") {
		for _, m := range regexp.MustCompile(`(?m)^    STRATEGY_(\w+) = [1-9]`).FindAllStringSubmatch(text, -1) {
			strategies = append(strategies, m[1])
		}
	}
	for _, tree := range runtimes {
		names = append(names, filepath.Base(filepath.Dir(tree)))
	}
	for _, text := range readFiles(t, root, "proto/windlass/v1/*.proto") {
		for _, m := range regexp.MustCompile(`(?m)^  rpc (\w+)\(`).FindAllStringSubmatch(text, -1) {
			rpcs = append(rpcs, m[1])
		}
	}
	missing("strategy", strategies, strategyPlaces)
	missing("runtime", names, runtimePlaces)
	missing("RPC", slices.Sorted(slices.Values(rpcs)), rpcPlaces)
}

// formOf matches NAME of the form however it is written: STRATEGY_BLUE_GREEN, strategy=blue_green, blueGreen,
// blue-green or "blue green".
func formOf(form, name string) string {
	return strings.ReplaceAll(form, "NAME", "(?i:"+strings.ReplaceAll(name, "_", "[-_ ]?")+")")
}

func readFiles(t *testing.T, root, pattern string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, pattern))
	require.NoError(t, err)
	require.NotEmpty(t, paths, pattern)
	out := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		out[path] = string(text)
	}
	return out
}

// TestReasons_HaveAMeaning: a reason that the planner does not know counts as a crash, in silence.
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
	var agents, known []string
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
			known = append(known, literal(e.(*ast.KeyValueExpr).Key))
		}
		return false
	})
	require.NotEmpty(t, agents)
	require.ElementsMatch(t, agents, known, "reasons of apps/agent/internal/runtime/runtime.go, and agentReasons of apps/controlplane/internal/rollup/reasons.go")
}
