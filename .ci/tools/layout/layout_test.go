package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// loaded are the packages of the workspace. The go command lists them once for all tests, which run one
// after the other.
var loaded []Package

func workspace(t *testing.T) (root string, packages []Package) {
	t.Helper()
	root, err := Root(".")
	require.NoError(t, err)
	// The test checks the workspace, also if the caller sets another GOWORK.
	t.Setenv("GOWORK", filepath.Join(root, "go.work"))
	if loaded == nil {
		loaded, err = Load(root)
		require.NoError(t, err)
	}
	require.NotEmpty(t, loaded)
	return root, slices.Clone(loaded)
}

func TestImports_FlowOneWay(t *testing.T) {
	_, packages := workspace(t)
	for _, v := range Check(packages, Rules) {
		t.Error(v)
	}
}

func TestModules_HaveNoUnwantedDependency(t *testing.T) {
	root, _ := workspace(t)
	for i := range ModuleRules {
		for _, dir := range ModuleRules[i].From {
			requires, err := Requires(filepath.Join(root, dir))
			require.NoError(t, err)
			for _, v := range Check([]Package{{Path: dir, Imports: requires}}, ModuleRules[i:i+1]) {
				t.Errorf("go.mod: %s", v)
			}
		}
	}
}

// A pure function gets the time as an argument, because a decision that reads the
// clock cannot be replayed.
func TestPurePackages_NeverReadTheClock(t *testing.T) {
	_, packages := workspace(t)
	clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	for _, p := range packages {
		if !matches(append(slices.Clone(kube), pure...), p.Path, p.Path) {
			continue
		}
		for _, file := range p.GoFiles {
			for _, use := range uses(t, filepath.Join(p.Dir, file), "time", clock) {
				t.Errorf("%s: a pure package takes the time as an argument", use)
			}
		}
	}
}

// A test that sleeps is slow on an idle machine, and fails on a busy machine. There
// are two exceptions: a bubble of testing/synctest, where sleeping advances virtual
// time, and the step of a loop with a condition (for ; !done(); time.Sleep(step)).
func TestTests_DoNotSleep(t *testing.T) {
	spared := map[string]string{
		"apps/agent/internal/runtime/process/crash_test.go":    "kills a process at a random moment, for which no condition exists",
		"apps/agent/internal/runtime/kubernetes/scale_test.go": "measures the cost of an idle region, and counts calls until they stop",
		"apps/controlplane/internal/rollout/harness_test.go":   "an agent in virtual time: tests in other files run it in bubbles",
		"apps/kubelab/internal/nodeagent/loop_test.go":         "shows that nothing happens in the time of two probes",
		"apps/e2e/fleettest/agree_test.go":                     "a part of fleets, which seeds_test.go runs in bubbles",
		"apps/e2e/fleettest/faults_test.go":                    "a part of fleets, which seeds_test.go runs in bubbles",
		"apps/windlass/internal/dev/main_test.go":              "is an instance in tests: a child process that waits for its stop",
	}
	_, packages := workspace(t)
	for _, p := range packages {
		for _, file := range p.TestFiles {
			path := filepath.Join(p.Dir, file)
			if spared[p.Path+"/"+file] != "" || imports(t, path, "testing/synctest") {
				continue
			}
			for _, use := range uses(t, path, "time", []string{"Sleep"}) {
				t.Errorf("%s: wait for the condition, or run in a bubble of testing/synctest", use)
			}
		}
	}
}

// A reader finds all metrics of a package in one file.
func TestMetrics_AreRegisteredInMetricsGo(t *testing.T) {
	const path = "github.com/prometheus/client_golang/prometheus"
	var constructors []string
	for _, kind := range []string{"Counter", "Gauge", "Histogram", "Summary"} {
		constructors = append(constructors, "New"+kind, "New"+kind+"Vec", "New"+kind+"Func")
	}
	constructors = append(constructors, "NewDesc")
	_, packages := workspace(t)
	for _, p := range packages {
		for _, file := range p.GoFiles {
			if file == "metrics.go" {
				continue
			}
			for _, use := range uses(t, filepath.Join(p.Dir, file), path, constructors) {
				t.Errorf("%s: move it to metrics.go of its package", use)
			}
		}
	}
}

// A test cannot call code in main.
func TestMain_HasUnder30Lines(t *testing.T) {
	_, packages := workspace(t)
	for _, p := range packages {
		for _, file := range p.GoFiles {
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
			if err != nil || f.Name.Name != "main" {
				continue
			}
			for _, decl := range f.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Name.Name == "main" && fn.Recv == nil {
					lines := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line
					require.Less(t, lines, 30, "%s/%s: move the work into a package", p.Path, file)
				}
			}
		}
	}
}

// A rule is useful only if it can fail. These imports are invented, and break every
// rule.
func TestRules_FindViolations(t *testing.T) {
	const cp, agent = "apps/controlplane/internal/", "apps/agent/internal/"
	made := map[string][]string{
		"proto/gen/windlass/v1":              {"pkg/ident"},
		"db":                                 {"proto/gen/windlass/v1"},
		"pkg/ident":                          {"db"},
		"apps/agent":                         {"apps/controlplane", "db"},
		"apps/windlass/internal/dev":         {"apps/controlplane/internal/api", "database/sql", "github.com/restatedev/sdk-go", "apps/kubelab"},
		"apps/kubelab/internal/nodeagent":    {"apps/agent"},
		cp + "plan":                          {"math/rand/v2", "net/http", cp + "topology"},
		cp + "model":                         {cp + "rollup", "sync"},
		cp + "appspec":                       {cp + "api"},
		cp + "rollup":                        {cp + "plan"},
		cp + "planinput":                     {cp + "rollout"},
		cp + "changefeed":                    {cp + "rollup"},
		cp + "topology":                      {cp + "api"},
		cp + "api":                           {cp + "store", cp + "dispatch"},
		cp + "store/mysql":                   {cp + "ingest"},
		cp + "dispatch":                      {"k8s.io/client-go/kubernetes", "pkg/localstack"},
		agent + "runtime":                    {agent + "session"},
		agent + "runtime/process":            {agent + "runtime/simulated"},
		agent + "runtime/kubernetes/render":  {"k8s.io/client-go/kubernetes"},
		agent + "runtime/kubernetes/desired": {agent + "runtime/kubernetes/access", agent + "runtime/kubernetes/replacement"},
		agent + "inbox":                      {agent + "runtime"},
		agent + "reconcile":                  {agent + "session"},
		agent + "report":                     {agent + "inbox"},
		"apps/gateway/internal/upstream":     {"proto/gen/windlass/gateway/v1"},
		"apps/gateway/internal/proxy":        {"apps/gateway/internal/routesync", "apps/gateway/internal/engine/epoll"},
	}
	var packages []Package
	for path, imports := range made {
		packages = append(packages, Package{Path: path, Imports: imports})
	}
	bit := map[string]bool{}
	for _, v := range Check(packages, Rules) {
		bit[v.Rule.Name] = true
	}
	names := map[string]bool{}
	for _, rule := range Rules {
		require.False(t, names[rule.Name], "two rules have the name %q", rule.Name)
		names[rule.Name] = true
		require.NotEmpty(t, rule.Why, rule.Name)
		require.True(t, bit[rule.Name], "no import of this test breaks %q", rule.Name)
	}
	for i := range ModuleRules {
		path := ModuleRules[i].From[0]
		bad := strings.TrimSuffix(ModuleRules[i].Deny[0], "/...")
		require.Len(t, Check([]Package{{Path: path, Imports: []string{bad}}}, ModuleRules[i:i+1]), 1, ModuleRules[i].Name)
	}
}

func TestRules_AllowWhatTheyShould(t *testing.T) {
	const cp = "apps/controlplane/internal/"
	for path, imports := range map[string][]string{
		"apps/controlplane":          {cp + "store/mysql", cp + "api", "database/sql", "github.com/restatedev/sdk-go", "db"},
		"apps/windlass/internal/dev": {"apps/controlplane", "apps/agent", "apps/windlass/internal/cli", "pkg/localstack/mariadb"},
		cp + "api/auth":              {cp + "api", cp + "model", cp + "plan", "connectrpc.com/connect"},
		cp + "plan":                  {cp + "model", cp + "rollup", "proto/gen/windlass/v1", "time"},
		"apps/agent/internal/runtime/kubernetes/render": {"k8s.io/client-go/applyconfigurations/apps/v1", "k8s.io/api/apps/v1"},
		"apps/agent/internal/runtime/kubernetes":        {"apps/agent/internal/runtime/kubernetes/access", "apps/agent/internal/runtime/kubernetes/replacement"},
		"apps/agent/internal/runtime/kubernetes/access": {"apps/agent/internal/runtime/kubernetes/render", "k8s.io/client-go/rest"},
		"apps/agent/internal/runtime/process/shim":      {"apps/agent/internal/runtime/process", "os/exec"},
		"apps/kubelab/internal/nodeagent":               {"apps/modelserver", "k8s.io/client-go/kubernetes"},
		"pkg/localstack/stacktest":                      {"pkg/localstack/mariadb", "database/sql"},
	} {
		require.Empty(t, Check([]Package{{Path: path, Imports: imports}}, Rules), path)
	}
}

func TestRules_CoverSubfoldersAndTests(t *testing.T) {
	below := Package{Path: "apps/controlplane/internal/plan", Imports: []string{"pkg/ident"}, Deps: []string{"pkg/ident", "net/http"}}
	found := Check([]Package{below}, Rules)
	require.Len(t, found, 1)
	require.True(t, found[0].Through)
	require.Contains(t, found[0].String(), "through others, net/http")

	test := Package{Path: "pkg/ident", TestImports: []string{"apps/agent"}}
	found = Check([]Package{test}, Rules)
	require.Len(t, found, 1)
	require.True(t, found[0].Test)
}

// A package below apps/agent/internal/runtime is a part of a runtime, or a package that runtimes share.
func TestRules_NameEveryRuntime(t *testing.T) {
	_, packages := workspace(t)
	const tree = "apps/agent/internal/runtime/"
	shared := []string{tree + "redact/...", tree + "runtimetest/..."}
	for _, p := range packages {
		if strings.HasPrefix(p.Path, tree) && !matches(slices.Concat(runtimes, shared), p.Path, p.Path) {
			t.Errorf("%s: add it to runtimes in rules.go if it is a runtime, or to shared in this test", p.Path)
		}
	}
}

// uses returns the places where a file selects one of names from the package at path,
// except in the step of a loop that has a condition.
func uses(t *testing.T, file, path string, names []string) []string {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	name := importName(f, path)
	var found []string
	steps := map[ast.Node]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if loop, ok := n.(*ast.ForStmt); ok && loop.Cond != nil && loop.Post != nil {
			steps[loop.Post] = true
		}
		if steps[n] {
			return false
		}
		if sel, ok := n.(*ast.SelectorExpr); ok && name != "" && slices.Contains(names, sel.Sel.Name) {
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == name {
				found = append(found, fset.Position(sel.Pos()).String()+": "+name+"."+sel.Sel.Name)
			}
		}
		return true
	})
	return found
}

func imports(t *testing.T, file, path string) bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	require.NoError(t, err)
	return importName(f, path) != ""
}

// importName returns the file's name of the package, or "" if the file does not import it.
func importName(f *ast.File, path string) string {
	for _, spec := range f.Imports {
		if strings.Trim(spec.Path.Value, `"`) == path {
			if spec.Name != nil {
				return spec.Name.Name
			}
			return path[strings.LastIndex(path, "/")+1:]
		}
	}
	return ""
}
