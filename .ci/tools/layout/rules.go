package layout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Rule says what some packages must not import. Patterns are import paths, ours
// without Prefix; "x/..." is x and everything in it, "..." is everything, and
// "$2/..." is the tree of the first two segments of the importing package's own
// path: of apps/agent/internal/inbox, apps/agent.
type Rule struct {
	Name string
	// Why is printed with each violation: it should talk the reader out of it.
	Why string
	// From are the packages that the rule is about, Except what of them it spares.
	From, Except []string
	// Deny is what they must not import; Allow is what of it they may.
	Deny, Allow []string
	// Below: nor may anything that they import, down to the last.
	Below bool
	// Tests: the rule holds for test files, too.
	Tests bool
}

// ours is every module of the repository.
var ours = []string{"proto/...", "db/...", "pkg/...", "apps/..."}

// doesIO is what makes a package more than a function of its arguments.
var doesIO = []string{
	"database/sql", "net/http", "os/exec",
	"connectrpc.com/...", "google.golang.org/grpc/...", "github.com/restatedev/...",
	"github.com/go-sql-driver/...", "github.com/prometheus/...", "k8s.io/client-go/...",
	"db/...",
}

// pure are the packages that decide. Their tests are tables and properties
// because nothing outside reaches in.
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

// kube are the packages of the Kubernetes runtime that decide. They are pure as well, but stand on Kubernetes'
// types, which import HTTP.
var kube = []string{
	"apps/agent/internal/runtime/kubernetes/render/...",
	"apps/agent/internal/runtime/kubernetes/desired/...",
	"apps/agent/internal/runtime/kubernetes/replacement/...",
}

// edges are where the world reaches the control plane.
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
		Why:  "a client of the API, in any repository, should get the API and nothing else",
		From: []string{"proto/..."}, Deny: ours, Allow: []string{"proto/..."}, Tests: true,
	},
	{
		Name: "db stands alone",
		Why:  "the schema is a contract like proto: it must not know who reads it",
		From: []string{"db/..."}, Deny: ours, Allow: []string{"db/..."}, Tests: true,
	},
	{
		Name: "pkg knows proto at most",
		Why:  "every program links pkg: what it imports, all of them carry",
		From: []string{"pkg/..."}, Deny: ours, Allow: []string{"pkg/...", "proto/..."}, Tests: true,
	},
	{
		Name: "apps do not import each other",
		Why:  "programs meet at the API; an import between them is a protocol that is not written down",
		From: []string{"apps/..."}, Except: []string{"apps/windlass/...", "apps/simulator/...", "apps/kubelab/...", "apps/e2e/fleettest"},
		Deny: []string{"apps/..."}, Allow: []string{"$2/..."}, Tests: true,
	},
	{
		Name: "kubelab's pods run the model server and nothing else of ours",
		Why:  "thousands of pods in one process need it as a library; a lab that knew Windlass could not prove anything about it",
		From: []string{"apps/kubelab/..."}, Deny: []string{"apps/..."}, Allow: []string{"$2/...", "apps/modelserver"}, Tests: true,
	},
	{
		Name: "kubelab is a program to run, not to link",
		Why:  "its pinned Kubernetes modules would decide everyone's client-go",
		From: ours, Except: []string{"apps/kubelab/..."}, Deny: []string{"apps/kubelab/..."}, Tests: true,
	},
	{
		Name: "who runs other apps sees their root package only",
		Why:  "`windlass dev`, the simulator and the fleets of tests start whole programs, they do not assemble them from parts",
		From: []string{"apps/windlass/...", "apps/simulator/...", "apps/e2e/fleettest"},
		Deny: []string{"apps/..."}, Tests: true,
		Allow: []string{"$2/...", "apps/controlplane", "apps/agent", "apps/gateway", "apps/modelserver", "apps/dashboard"},
	},
	{
		Name: "db is the control plane's",
		Why:  "one program owns the truth; everyone else asks it",
		From: ours, Except: []string{"db/...", "apps/controlplane/...", "apps/windlass/...", "apps/simulator/...", "apps/e2e/fleettest"},
		Deny: []string{"db/..."}, Below: true,
	},
	{
		Name: "pure packages do no I/O",
		Why:  "decisions are functions of their arguments: that is why they can be tested in microseconds and replayed",
		From: pure, Deny: doesIO, Below: true,
	},
	{
		Name: "pure packages roll no dice",
		Why:  "the same input must give the same decision; randomness is an argument",
		From: pure, Deny: []string{"math/rand/...", "crypto/rand"},
	},
	{
		Name: "desired objects and the replacement of pods do no I/O",
		Why:  "what is applied to a cluster, and which pods go, are functions of the assignment and of what was seen: golden files and histories prove it",
		From: kube, Deny: doesIO, Allow: []string{"k8s.io/client-go/applyconfigurations/..."},
	},
	{
		Name: "the pure core imports only itself",
		Why:  "it is what everything else stands on",
		From: core, Deny: []string{"apps/..."}, Allow: core,
	},
	{
		Name: "the pure core shares nothing between goroutines",
		Why:  "its tests run without the race detector, tens of thousands of drawn histories each",
		From: core, Deny: []string{"sync", "sync/atomic"}, Tests: true,
	},
	{
		Name: "model is the ground",
		Why:  "it is the one word list; a word list that imports a story is part of the story",
		From: []string{"apps/controlplane/internal/model/..."}, Deny: []string{"apps/..."}, Allow: []string{"apps/controlplane/internal/model/..."},
	},
	{
		Name: "specs are checked by themselves",
		Why:  "what a spec says is right or wrong whatever is stored; what depends on rows is checked by the API",
		From: []string{"apps/controlplane/internal/appspec/...", "apps/controlplane/internal/apierr/..."},
		Deny: []string{"apps/...", "db/..."}, Allow: slices.Concat(core, []string{"apps/controlplane/internal/apierr/..."}),
	},
	{
		Name: "what a plan reads is read in one way",
		Why:  "the step, the preview and the views go by the same input: none of them may bend how it is read",
		From: []string{"apps/controlplane/internal/planinput/...", "apps/controlplane/internal/preview/..."},
		Deny: slices.Concat(edges, []string{"apps/controlplane/internal/store/...", "db/..."}),
	},
	{
		Name: "rollup does not plan",
		Why:  "rollup says what is, plan says what next: reports flow to decisions, never back",
		From: []string{"apps/controlplane/internal/rollup/..."}, Deny: []string{"apps/controlplane/internal/plan/..."},
	},
	{
		Name: "the feed knows no cause",
		Why:  "a change is a row in a region's order; why it was made is upstream",
		From: []string{"apps/controlplane/internal/changefeed/..."},
		Deny: []string{"apps/controlplane/internal/plan/...", "apps/controlplane/internal/rollup/...", "apps/controlplane/internal/topology/..."},
	},
	{
		Name: "topology does not reach back",
		Why:  "it writes what a plan decided: it neither decides nor knows who asked",
		From: []string{"apps/controlplane/internal/topology/..."},
		Deny: slices.Concat(edges, []string{"apps/controlplane/internal/plan/...", "apps/controlplane/internal/store/..."}),
	},
	{
		Name: "edges do not know the store",
		Why:  "each declares the few methods that it calls, so that its tests and its readers see them; only the wiring joins the two",
		From: edges, Deny: []string{"apps/controlplane/internal/store/..."},
	},
	{
		Name: "edges do not know each other",
		Why:  "what one edge has to tell another is a row and a wake-up: that survives a crash, a call does not",
		From: edges, Deny: edges, Allow: []string{"$4/..."},
	},
	{
		Name: "the store knows no edge",
		Why:  "it serves them all",
		From: []string{"apps/controlplane/internal/store/..."}, Deny: edges,
	},
	{
		Name: "SQL is spoken in one place",
		Why:  "lock order and retries are argued once, in the store; a query elsewhere is outside that argument",
		From: []string{"apps/..."},
		// The wiring opens the handle. The simulator measures what the database does
		// alone, and asks it as a witness.
		Except: []string{"apps/controlplane", "apps/controlplane/internal/store/mysql/...", "apps/simulator/internal/bare"},
		Deny:   []string{"database/sql", "github.com/go-sql-driver/...", "github.com/pressly/goose/...", "db/gen/..."},
	},
	{
		Name: "Restate is the rollout's driver",
		Why:  "truth is in SQL: another package with a Restate context would start to trust it with more",
		// The simulator measures what Restate does alone.
		From: []string{"..."}, Except: []string{"apps/controlplane", "apps/controlplane/internal/rollout/...", "apps/simulator/internal/bare"},
		Deny: []string{"github.com/restatedev/..."}, Tests: true,
	},
	{
		Name: "client-go is the Kubernetes runtime's",
		Why:  "the agent is about regions, not about Kubernetes; on a bare host it must not even know the word",
		From: []string{"..."},
		// The agent's wiring makes the client; kubelab is the other end of it.
		Except: []string{"apps/agent", "apps/agent/internal/runtime/kubernetes/...", "apps/kubelab/..."},
		Deny:   []string{"k8s.io/client-go/...", "sigs.k8s.io/controller-runtime/..."}, Tests: true,
	},
	{
		Name: "local servers are for dev and tests",
		Why:  "a program that runs in production must not be able to start a database of its own",
		From: ours, Except: []string{"pkg/localstack/...", "apps/windlass/...", "apps/simulator/...", "apps/kubelab/..."},
		Deny: []string{"pkg/localstack/..."}, Below: true,
	},
	{
		Name: "runtimes know only the contract",
		Why:  "what is wanted comes in by apply, what is seen goes out by observe: that is why one suite fits all of them",
		From: []string{"apps/agent/internal/runtime/..."},
		Deny: []string{"apps/agent/internal/session/...", "apps/agent/internal/inbox/...", "apps/agent/internal/reconcile/...", "apps/agent/internal/report/..."},
	},
	{
		Name: "runtimes do not know each other",
		Why:  "each must be removable",
		From: runtimes,
		Deny: runtimes, Allow: []string{"$5/..."},
	},
	{
		Name: "cluster access, desired objects and replacement meet in the Kubernetes runtime",
		Why:  "each can be read and tested without the others: what is wanted, which pods go, and how the API server is asked",
		From: append([]string{"apps/agent/internal/runtime/kubernetes/access/..."}, kube...),
		Deny: []string{"apps/agent/internal/runtime/kubernetes/..."}, Tests: true,
		Allow: []string{"$6/...", "apps/agent/internal/runtime/kubernetes/render/..."},
	},
	{
		Name: "the inbox does not reach back",
		Why:  "what a region should run must survive without a connection and without a runtime",
		From: []string{"apps/agent/internal/inbox/..."},
		Deny: []string{"apps/agent/internal/session/...", "apps/agent/internal/reconcile/...", "apps/agent/internal/report/...", "apps/agent/internal/runtime/..."},
	},
	{
		Name: "reconcile needs no connection",
		Why:  "the desired set is local: a region that is cut off keeps converging",
		From: []string{"apps/agent/internal/reconcile/..."},
		Deny: []string{"apps/agent/internal/session/...", "apps/agent/internal/report/..."},
	},
	{
		Name: "report only tells",
		Why:  "what was seen must not change what is wanted",
		From: []string{"apps/agent/internal/report/..."},
		Deny: []string{"apps/agent/internal/session/...", "apps/agent/internal/inbox/...", "apps/agent/internal/reconcile/..."},
	},
	{
		Name: "what a gateway decides knows neither wire",
		Why:  "a choice is made of what is known: how that came, and how the request goes on, is others' work, and no test of it needs a socket",
		From: []string{"apps/gateway/internal/balance/...", "apps/gateway/internal/decide/...", "apps/gateway/internal/health/...", "apps/gateway/internal/upstream/...", "apps/gateway/internal/table/..."},
		Deny: []string{"proto/...", "net/http", "apps/gateway/internal/proxy/...", "apps/gateway/internal/routesync/..."},
	},
	{
		Name: "the gateway's engine has one door",
		Why:  "sockets and pollers of its own are a liability: what is behind one package can be replaced, or left out by a flag",
		From: []string{"apps/gateway/..."}, Except: []string{"apps/gateway/internal/engine/..."},
		Deny: []string{"apps/gateway/internal/engine/..."}, Allow: []string{"apps/gateway/internal/engine"}, Tests: true,
	},
	{
		Name: "the proxy and the source of routes meet in the table",
		Why:  "requests go on while the agent is away, and the agent is told the truth while requests hang",
		From: []string{"apps/gateway/internal/proxy/...", "apps/gateway/internal/routesync/..."},
		Deny: []string{"apps/gateway/internal/proxy/...", "apps/gateway/internal/routesync/..."}, Allow: []string{"$4/..."},
	},
}

// ModuleRules are about go.mod files, where anybody can look what a program
// brings along.
var ModuleRules = []Rule{
	{
		Name: "the agent brings no database and no workflow engine",
		Why:  "it runs in other people's regions: less to audit, less to patch",
		From: []string{"apps/agent"},
		Deny: []string{"db/...", "github.com/go-sql-driver/...", "github.com/pressly/goose/...", "github.com/restatedev/..."},
	},
	{
		Name: "the gateway brings a proxy and nothing else",
		Why:  "it stands where strangers' requests arrive: it knows the agent's contract, no database and no cluster",
		From: []string{"apps/gateway"},
		Deny: []string{"db/...", "github.com/go-sql-driver/...", "github.com/restatedev/...", "k8s.io/...", "sigs.k8s.io/..."},
	},
	{
		Name: "the control plane brings no Kubernetes client",
		Why:  "nothing ever connects into a region",
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

// Check returns what the packages do against the rules.
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

// matches reports whether path fits one of the patterns, as seen from a package.
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
