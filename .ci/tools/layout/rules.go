package layout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Rule lists imports that some packages must not have. Patterns are import paths. Paths
// of this repository have no Prefix. "x/..." matches x and all packages below it, and
// "..." matches all packages. "$2/..." is the tree of the first two segments of the
// importing package's path: apps/agent for apps/agent/internal/inbox.
type Rule struct {
	Name string
	// Why is the reason for the rule. It is printed with each violation.
	Why string
	// From are the packages to which the rule applies, except the packages in Except.
	From, Except []string
	// Deny are the packages that they must not import, except the packages in Allow.
	Deny, Allow []string
	// Below means that the rule also applies to indirect imports.
	Below bool
	// Tests means that the rule also applies to test files.
	Tests bool
}

// ours is every module of the repository.
var ours = []string{"proto/...", "db/...", "pkg/...", "apps/..."}

// doesIO are the packages that a pure package must not import, because they do I/O.
var doesIO = []string{
	"database/sql", "net/http", "os/exec",
	"connectrpc.com/...", "google.golang.org/grpc/...", "github.com/restatedev/...",
	"github.com/go-sql-driver/...", "github.com/prometheus/...", "k8s.io/client-go/...",
	"db/...",
}

// pure are the packages that make decisions. Their tests are tables and properties,
// because the packages depend only on their arguments.
var pure = []string{
	"apps/controlplane/internal/model/...",
	"apps/controlplane/internal/plan/...",
	"apps/controlplane/internal/rollup/...",
	"apps/controlplane/internal/changefeed/...",
	"apps/controlplane/internal/notification/...",
	"apps/gateway/internal/balance/...",
	"apps/gateway/internal/decide/...",
	"apps/gateway/internal/health/...",
	"apps/gateway/internal/http1/...",
	"apps/gateway/internal/traffic/...",
	"apps/agent/internal/gang/...",
	"apps/agent/internal/groups/...",
	"apps/agent/internal/traffic/...",
	"pkg/digest/...",
	"pkg/histogram/...",
	"pkg/modelstate/...",
	"pkg/placement/...",
	"pkg/preset/...",
}

// core are the pure packages of the control plane. .ci/test runs their tests without the
// race detector.
var core = []string{
	"apps/controlplane/internal/model/...",
	"apps/controlplane/internal/plan/...",
	"apps/controlplane/internal/rollup/...",
	"apps/controlplane/internal/changefeed/...",
}

// runtimes are the trees of the agent's runtimes. TestRules_NameEveryRuntime fails without a new one.
var runtimes = []string{
	"apps/agent/internal/runtime/process/...",
	"apps/agent/internal/runtime/kubernetes/...",
	"apps/agent/internal/runtime/simulated/...",
}

// kube are the packages of the Kubernetes runtime that make decisions. They are pure, too, but use Kubernetes' types,
// which import HTTP.
var kube = []string{
	"apps/agent/internal/runtime/kubernetes/render/...",
	"apps/agent/internal/runtime/kubernetes/desired/...",
	"apps/agent/internal/runtime/kubernetes/replacement/...",
}

// edges are the packages through which other programs reach the control plane.
var edges = []string{
	"apps/controlplane/internal/api/...",
	"apps/controlplane/internal/rollout/...",
	"apps/controlplane/internal/dispatch/...",
	"apps/controlplane/internal/ingest/...",
	"apps/controlplane/internal/fleet/...",
	"apps/controlplane/internal/peers/...",
	"apps/controlplane/internal/notify/...",
	"apps/controlplane/internal/console/...",
}

// Rules are the direction rules.
var Rules = []Rule{
	{
		Name: "proto stands alone",
		Why:  "a client of the API, in any repository, should depend only on the API",
		From: []string{"proto/..."}, Deny: ours, Allow: []string{"proto/..."}, Tests: true,
	},
	{
		Name: "db stands alone",
		Why:  "the schema is a contract like proto: it must not depend on its readers",
		From: []string{"db/..."}, Deny: ours, Allow: []string{"db/..."}, Tests: true,
	},
	{
		Name: "pkg imports only proto",
		Why:  "every program links pkg, and therefore the imports of pkg",
		From: []string{"pkg/..."}, Deny: ours, Allow: []string{"pkg/...", "proto/..."}, Tests: true,
	},
	{
		Name: "apps do not import each other",
		Why:  "programs use each other's API; an import between them is a protocol without a specification",
		From: []string{"apps/..."}, Except: []string{"apps/windlass/...", "apps/simulator/...", "apps/kubelab/...", "apps/e2e/fleettest"},
		Deny: []string{"apps/..."}, Allow: []string{"$2/..."}, Tests: true,
	},
	{
		Name: "kubelab imports no app except the model server",
		Why:  "thousands of pods in one process need the model server as a library; kubelab must not depend on the programs that it tests",
		From: []string{"apps/kubelab/..."}, Deny: []string{"apps/..."}, Allow: []string{"$2/...", "apps/modelserver"}, Tests: true,
	},
	{
		Name: "kubelab is a program to run, not to link",
		Why:  "its pinned Kubernetes modules would decide the version of client-go for all modules",
		From: ours, Except: []string{"apps/kubelab/..."}, Deny: []string{"apps/kubelab/..."}, Tests: true,
	},
	{
		Name: "programs that run other apps import only their root packages",
		Why:  "`windlass dev`, the simulator and the fleets of tests start whole programs, and do not assemble them from parts",
		From: []string{"apps/windlass/...", "apps/simulator/...", "apps/e2e/fleettest"},
		Deny: []string{"apps/..."}, Tests: true,
		Allow: []string{"$2/...", "apps/controlplane", "apps/agent", "apps/gateway", "apps/modelserver", "apps/onnxserver", "apps/dashboard"},
	},
	{
		Name: "only the control plane uses db",
		Why:  "one program owns the stored state; all others call its API",
		From: ours, Except: []string{"db/...", "apps/controlplane/...", "apps/windlass/...", "apps/simulator/...", "apps/e2e/fleettest"},
		Deny: []string{"db/..."}, Below: true,
	},
	{
		Name: "pure packages do no I/O",
		Why:  "decisions are functions of their arguments, so that they can be tested in microseconds and replayed",
		From: pure, Deny: doesIO, Below: true,
	},
	{
		Name: "pure packages make no random choices",
		Why:  "the same input must give the same decision; randomness is an argument",
		From: pure, Deny: []string{"math/rand/...", "crypto/rand"},
	},
	{
		Name: "desired objects and the replacement of pods do no I/O",
		Why:  "the desired objects and the pods to replace are functions of the assignment and the observed state: golden files and histories prove it",
		From: kube, Deny: doesIO, Allow: []string{"k8s.io/client-go/applyconfigurations/..."},
	},
	{
		Name: "the pure core imports only itself",
		Why:  "all other packages of the control plane depend on it",
		From: core, Deny: []string{"apps/..."}, Allow: core,
	},
	{
		Name: "the pure core shares nothing between goroutines",
		Why:  "its tests run without the race detector, because each runs tens of thousands of drawn histories",
		From: core, Deny: []string{"sync", "sync/atomic"}, Tests: true,
	},
	{
		Name: "model imports no other package of the apps",
		Why:  "it has the terms that all packages share, so it must not depend on one of these packages",
		From: []string{"apps/controlplane/internal/model/..."}, Deny: []string{"apps/..."}, Allow: []string{"apps/controlplane/internal/model/..."},
	},
	{
		Name: "specs are checked without stored data",
		Why:  "whether a spec is valid does not depend on stored data; the API makes the checks that depend on rows",
		From: []string{"apps/controlplane/internal/appspec/...", "apps/controlplane/internal/apierr/..."},
		Deny: []string{"apps/...", "db/..."}, Allow: slices.Concat(core, []string{"apps/controlplane/internal/apierr/..."}),
	},
	{
		Name: "the input of plans is read by one package",
		Why:  "the step, the preview and the views use the same input: none of them may change how it is read",
		From: []string{"apps/controlplane/internal/planinput/...", "apps/controlplane/internal/preview/..."},
		Deny: slices.Concat(edges, []string{"apps/controlplane/internal/store/...", "db/..."}),
	},
	{
		Name: "rollup does not plan",
		Why:  "rollup computes the current state, and plan computes the next step from it: plan may use rollup, but not the reverse",
		From: []string{"apps/controlplane/internal/rollup/..."}, Deny: []string{"apps/controlplane/internal/plan/..."},
	},
	{
		Name: "the feed does not know why a change was made",
		Why:  "a change is a row in a region's order; the code that makes it knows the reason",
		From: []string{"apps/controlplane/internal/changefeed/..."},
		Deny: []string{"apps/controlplane/internal/plan/...", "apps/controlplane/internal/rollup/...", "apps/controlplane/internal/topology/..."},
	},
	{
		Name: "topology does not import its callers",
		Why:  "it writes the decisions of a plan: it makes no decisions, and does not know its callers",
		From: []string{"apps/controlplane/internal/topology/..."},
		Deny: slices.Concat(edges, []string{"apps/controlplane/internal/plan/...", "apps/controlplane/internal/store/..."}),
	},
	{
		Name: "edges do not know the store",
		Why:  "each edge declares the few methods that it calls, so that its tests and its readers see them; only the wiring connects edges and the store",
		From: edges, Deny: []string{"apps/controlplane/internal/store/..."},
	},
	{
		Name: "edges do not know each other",
		Why:  "an edge notifies another edge by a row and a wake-up: these survive a crash, but a call does not",
		From: edges, Deny: edges, Allow: []string{"$4/..."},
	},
	{
		Name: "the store does not import edges",
		Why:  "all edges use the store",
		From: []string{"apps/controlplane/internal/store/..."}, Deny: edges,
	},
	{
		Name: "only the store uses SQL",
		Why:  "the store defines lock order and retries; a query in another package could violate them",
		From: []string{"apps/..."},
		// The wiring opens the database. The simulator measures the database alone, and
		// checks results in it.
		Except: []string{"apps/controlplane", "apps/controlplane/internal/store/mysql/...", "apps/simulator/internal/bare"},
		Deny:   []string{"database/sql", "github.com/go-sql-driver/...", "github.com/pressly/goose/...", "db/gen/..."},
	},
	{
		Name: "only rollouts use Restate",
		Why:  "SQL has the state: another package with a Restate context would begin to store state in Restate",
		// The simulator measures Restate alone.
		From: []string{"..."}, Except: []string{"apps/controlplane", "apps/controlplane/internal/rollout/...", "apps/simulator/internal/bare"},
		Deny: []string{"github.com/restatedev/..."}, Tests: true,
	},
	{
		Name: "only the Kubernetes runtime uses client-go",
		Why:  "the rest of the agent must work without Kubernetes, for example on a bare host",
		From: []string{"..."},
		// The agent's wiring makes the client, and kubelab is the server for it.
		Except: []string{"apps/agent", "apps/agent/internal/runtime/kubernetes/...", "apps/kubelab/..."},
		Deny:   []string{"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/..."}, Tests: true,
	},
	{
		Name: "local servers are for dev and tests",
		Why:  "a program in production must not be able to start a database",
		From: ours, Except: []string{"pkg/localstack/...", "apps/windlass/...", "apps/simulator/...", "apps/kubelab/..."},
		Deny: []string{"pkg/localstack/..."}, Below: true,
	},
	{
		Name: "runtimes know only the contract",
		Why:  "a runtime gets the desired state by Apply and returns the observed state by Observe, so that one test suite fits all runtimes",
		From: []string{"apps/agent/internal/runtime/..."},
		Deny: []string{"apps/agent/internal/session/...", "apps/agent/internal/inbox/...", "apps/agent/internal/reconcile/...", "apps/agent/internal/report/..."},
	},
	{
		Name: "runtimes do not know each other",
		Why:  "it must be possible to remove one runtime without changing another",
		From: runtimes,
		Deny: runtimes, Allow: []string{"$5/..."},
	},
	{
		Name: "cluster access, desired objects and replacement meet in the Kubernetes runtime",
		Why:  "each can be read and tested alone: the desired objects, the choice of pods to replace, and the calls of the API server",
		From: append([]string{"apps/agent/internal/runtime/kubernetes/access/..."}, kube...),
		Deny: []string{"apps/agent/internal/runtime/kubernetes/..."}, Tests: true,
		Allow: []string{"$6/...", "apps/agent/internal/runtime/kubernetes/render/..."},
	},
	{
		Name: "the inbox imports neither connection nor runtime",
		Why:  "the desired state of a region must survive without a connection and without a runtime",
		From: []string{"apps/agent/internal/inbox/..."},
		Deny: []string{"apps/agent/internal/session/...", "apps/agent/internal/reconcile/...", "apps/agent/internal/report/...", "apps/agent/internal/runtime/..."},
	},
	{
		Name: "reconcile needs no connection",
		Why:  "the desired state is local, so that a disconnected region still converges",
		From: []string{"apps/agent/internal/reconcile/..."},
		Deny: []string{"apps/agent/internal/session/...", "apps/agent/internal/report/..."},
	},
	{
		Name: "report does not change the desired state",
		Why:  "the observed state must not change the desired state",
		From: []string{"apps/agent/internal/report/..."},
		Deny: []string{"apps/agent/internal/session/...", "apps/agent/internal/inbox/...", "apps/agent/internal/reconcile/..."},
	},
	{
		Name: "a gateway's decisions import no network code",
		Why:  "a decision depends only on known facts: other packages receive the facts and send the request, so that no test of a decision needs a socket",
		From: []string{"apps/gateway/internal/balance/...", "apps/gateway/internal/decide/...", "apps/gateway/internal/health/...", "apps/gateway/internal/upstream/...", "apps/gateway/internal/table/..."},
		Deny: []string{"proto/...", "net/http", "apps/gateway/internal/proxy/...", "apps/gateway/internal/routesync/..."},
	},
	{
		Name: "the gateway's engine is used through one package",
		Why:  "its own sockets and pollers are a risk: code behind one package can be replaced, or turned off by a flag",
		From: []string{"apps/gateway/..."}, Except: []string{"apps/gateway/internal/engine/..."},
		Deny: []string{"apps/gateway/internal/engine/..."}, Allow: []string{"apps/gateway/internal/engine"}, Tests: true,
	},
	{
		Name: "the proxy and the source of routes share only the table",
		Why:  "requests continue while the agent is down, and the agent gets correct reports while requests hang",
		From: []string{"apps/gateway/internal/proxy/...", "apps/gateway/internal/routesync/..."},
		Deny: []string{"apps/gateway/internal/proxy/...", "apps/gateway/internal/routesync/..."}, Allow: []string{"$4/..."},
	},
}

// ModuleRules are rules for go.mod files, where readers see the dependencies of a
// program.
var ModuleRules = []Rule{
	{
		Name: "the agent depends on no database and no workflow engine",
		Why:  "it runs in regions of other organizations, which have to audit and patch its dependencies",
		From: []string{"apps/agent"},
		Deny: []string{"db/...", "github.com/go-sql-driver/...", "github.com/pressly/goose/...", "github.com/restatedev/..."},
	},
	{
		Name: "the gateway depends only on a proxy's modules",
		Why:  "it receives requests of strangers: it knows the agent's contract, but no database and no cluster",
		From: []string{"apps/gateway"},
		Deny: []string{"db/...", "github.com/go-sql-driver/...", "github.com/restatedev/...", "k8s.io/...", "sigs.k8s.io/..."},
	},
	{
		Name: "the control plane depends on no Kubernetes client",
		Why:  "the control plane never connects to a region",
		From: []string{"apps/controlplane"},
		Deny: []string{"k8s.io/...", "sigs.k8s.io/..."},
	},
}

// Violation is one import that a rule forbids.
type Violation struct {
	Rule          *Rule
	Package, Dep  string
	Test, Through bool
}

func (v Violation) String() string {
	how := "imports"
	switch {
	case v.Test:
		how = "imports, in a test,"
	case v.Through:
		how = "imports, through others,"
	}
	return fmt.Sprintf("%s %s %s\n  rule:   %s\n  reason: %s", v.Package, how, v.Dep, v.Rule.Name, v.Rule.Why)
}

// Check returns the violations of the rules in the packages.
func Check(packages []Package, rules []Rule) []Violation {
	var found []Violation
	for i := range rules {
		rule := &rules[i]
		for _, p := range packages {
			if !matches(rule.From, p.Path, p.Path) || matches(rule.Except, p.Path, p.Path) {
				continue
			}
			add := func(deps []string, test, through bool) {
				for _, dep := range deps {
					if matches(rule.Deny, p.Path, dep) && !matches(rule.Allow, p.Path, dep) {
						found = append(found, Violation{Rule: rule, Package: p.Path, Dep: dep, Test: test, Through: through})
					}
				}
			}
			add(p.Imports, false, false)
			if rule.Tests {
				add(p.TestImports, true, false)
			}
			if rule.Below {
				add(slices.DeleteFunc(slices.Clone(p.Deps), func(dep string) bool { return slices.Contains(p.Imports, dep) }), false, true)
			}
		}
	}
	return found
}

// matches reports whether path matches one of the patterns, for an import by the package from.
func matches(patterns []string, from, path string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if n, rest, ok := strings.Cut(pattern, "/"); ok && strings.HasPrefix(n, "$") {
			count, err := strconv.Atoi(n[1:])
			if err != nil {
				panic("bad pattern " + pattern)
			}
			segments := strings.Split(from, "/")
			pattern = strings.Join(segments[:min(count, len(segments))], "/") + "/" + rest
		}
		return under(pattern, path)
	})
}

func under(pattern, path string) bool {
	tree, all := strings.CutSuffix(pattern, "...")
	if !all {
		return path == pattern
	}
	return strings.HasPrefix(path+"/", tree)
}
