package kubernetes_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/apps/agent/internal/disk"
	"github.com/windlass-run/windlass/apps/agent/internal/gateways"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/gatewayapi"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/kubetest"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	routesNamespace = "windlass-routes"
	soon            = 2 * time.Minute
	look            = 20 * time.Millisecond
)

var httpRoutes = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}

// edge is a region's table, the follower that writes the table to the cluster, and the cluster as
// its administrator sees it. The test plays the controller of the Gateway.
type edge struct {
	*harness
	t      *testing.T
	admin  dynamic.Interface
	suffix string
	table  *gateways.Gateways
	inbox  *inbox.Inbox
	halt   func()
}

func newEdge(t *testing.T) *edge {
	h := newHarness(t)
	l, err := cluster()
	require.NoError(t, err)
	admin, err := dynamic.NewForConfig(unlimited(l.admin))
	require.NoError(t, err)
	return &edge{harness: h, t: t, admin: admin, suffix: strings.TrimPrefix(h.cfg.Region, "r-")}
}

func (e *edge) id(name string) string { return name + "_" + e.suffix }

// open starts with an empty inbox and a new table, like an agent that has just started.
func (e *edge) open(items ...*agentv1.Item) {
	e.t.Helper()
	var err error
	e.inbox, err = inbox.OpenMemory(inbox.NewMemory())
	require.NoError(e.t, err)
	e.table, err = gateways.New(gateways.Config{
		Inbox: e.inbox, Files: disk.NewMemory(), Name: "gateways.json", Around: "neighbours.binpb", Versions: "versions.json", TableID: fmt.Sprintf("tbl_%d", rand.Uint32()),
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	require.NoError(e.t, err)
	f, err := gatewayapi.New(gatewayapi.Config{
		Feed: e.table.Follow("gateway-api", true), Client: e.cfg.Client, Namespace: routesNamespace, Region: e.cfg.Region,
		Parent: gatewayapi.Parent{Namespace: "edge", Name: "public", Section: "https"}, UserAgent: "windlass-agent/test", FieldManager: "windlass-agent",
		Log: slog.New(slog.NewTextHandler(e.t.Output(), nil)), Rand: rand.Float64, Patience: 100 * time.Millisecond,
	})
	require.NoError(e.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.t.Context()))
	ended := make(chan error, 2)
	go func() { ended <- f.Run(ctx) }()
	go func() { ended <- e.table.Run(ctx) }()
	e.halt = sync.OnceFunc(func() {
		cancel()
		require.NoError(e.t, <-ended)
		require.NoError(e.t, <-ended)
	})
	e.t.Cleanup(e.halt)
	_, err = e.inbox.Snapshot(&agentv1.SnapshotBegin{Revision: 1, Count: int64(len(items))}, items)
	require.NoError(e.t, err)
	for _, item := range items {
		if r := item.GetRoutes(); r != nil {
			e.table.Route(r, item.Epoch, item.Generation)
		}
	}
	e.table.Learn()
}

// deployment returns the item of a deployment that is assigned to the region. preview is the host of its
// preview, or empty.
func (e *edge) deployment(name, preview string) *agentv1.Item {
	id := e.id(name)
	return &agentv1.Item{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: id, Generation: 1, Content: &agentv1.Item_Deployment{Deployment: &agentv1.DeploymentState{
		Action: agentv1.DeploymentState_ACTION_APPLY, WorkloadKey: id, Deployment: &agentv1.Deployment{Id: id, AppId: e.id("app"), AppName: "chat", PreviewHost: preview},
	}}}
}

func (e *edge) routes(generation int64, policy *windlassv1.RoutingPolicy, weights ...int32) *agentv1.Item {
	r := &agentv1.Routes{AppId: e.id("app"), Policy: policy}
	for i, w := range weights {
		r.Hosts = []string{"chat.test"}
		id := e.id(fmt.Sprintf("dep_%d", i+1))
		r.Targets = append(r.Targets, &agentv1.RouteTarget{DeploymentId: id, Weight: w, WorkloadKey: id})
	}
	return &agentv1.Item{Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Key: r.AppId, Generation: generation, Content: &agentv1.Item_Routes{Routes: r}}
}

func (e *edge) route(item *agentv1.Item) { e.table.Route(item.GetRoutes(), 0, item.Generation) }

// see makes the table observe one instance of each deployment, in the given states.
func (e *edge) see(states ...windlassv1.InstanceStatus) {
	var seen []runtime.ObservedDeployment
	for i, s := range states {
		seen = append(seen, runtime.ObservedDeployment{DeploymentID: e.id(fmt.Sprintf("dep_%d", i+1)), Instances: []runtime.Instance{
			{ID: fmt.Sprintf("ins_%d", i+1), Address: fmt.Sprintf("10.1.0.%d:8000", i+1), Status: s},
		}})
	}
	e.table.See(runtime.Observation{Deployments: seen})
}

func (e *edge) notes() string {
	return strings.Join(e.table.Annotate(&agentv1.Capacity{}).GetNotes(), " ")
}

func (e *edge) eventually(what string, holds func() bool) {
	e.t.Helper()
	require.Eventually(e.t, holds, soon, look, what)
}

func name(id string) string { return strings.ReplaceAll(id, "_", "-") }

// httpRoute returns the HTTPRoute with this name, or nil if there is none.
func (e *edge) httpRoute(name string) *gwv1.HTTPRoute {
	e.t.Helper()
	u, err := e.admin.Resource(httpRoutes).Namespace(routesNamespace).Get(e.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(e.t, err)
	out := &gwv1.HTTPRoute{}
	require.NoError(e.t, apiruntime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out))
	return out
}

// weights returns the weights of the app's route, by backend, or "none".
func (e *edge) weights() string {
	r := e.httpRoute(name(e.id("app")) + "-0")
	if r == nil {
		return "none"
	}
	var out []string
	for _, b := range r.Spec.Rules[0].BackendRefs {
		out = append(out, fmt.Sprintf("%s=%d", strings.TrimSuffix(string(b.Name), "-"+e.suffix), *b.Weight))
	}
	return strings.Join(out, " ")
}

// endpoints returns the endpoints of a deployment, with their conditions.
func (e *edge) endpoints(dep string) string {
	e.t.Helper()
	all, err := e.api.DiscoveryV1().EndpointSlices(routesNamespace).List(e.t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name(e.id(dep))})
	require.NoError(e.t, err)
	var out []string
	for _, s := range all.Items {
		for _, p := range s.Endpoints {
			out = append(out, fmt.Sprintf("%s:%d ready=%t terminating=%t", p.Addresses[0], *s.Ports[0].Port, *p.Conditions.Ready, *p.Conditions.Terminating))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// answer sets the status of all routes of the region for their current generation, as a controller
// does. accepted says whether the controller accepts the routes.
func (e *edge) answer(accepted bool) {
	e.t.Helper()
	list, err := e.admin.Resource(httpRoutes).Namespace(routesNamespace).List(e.t.Context(), metav1.ListOptions{LabelSelector: "windlass.run/region=" + e.cfg.Region})
	require.NoError(e.t, err)
	for i := range list.Items {
		r := &gwv1.HTTPRoute{}
		require.NoError(e.t, apiruntime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, r))
		status, reason := metav1.ConditionTrue, "Accepted"
		if !accepted {
			status, reason = metav1.ConditionFalse, "NotAllowedByListeners"
		}
		condition := func(kind gwv1.RouteConditionType, status metav1.ConditionStatus, reason string) metav1.Condition {
			return metav1.Condition{Type: string(kind), Status: status, Reason: reason, Message: "as told", ObservedGeneration: r.Generation, LastTransitionTime: metav1.Now()}
		}
		r.Status.Parents = []gwv1.RouteParentStatus{{
			ParentRef: r.Spec.ParentRefs[0], ControllerName: "example.com/edge",
			Conditions: []metav1.Condition{condition(gwv1.RouteConditionAccepted, status, reason), condition(gwv1.RouteConditionResolvedRefs, metav1.ConditionTrue, "ResolvedRefs")},
		}}
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(r)
		require.NoError(e.t, err)
		_, err = e.admin.Resource(httpRoutes).Namespace(routesNamespace).UpdateStatus(e.t.Context(), &unstructured.Unstructured{Object: content}, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			require.NoError(e.t, err)
		}
	}
}

// serve accepts routes as they change, until stop is called.
func (e *edge) serve() (stop func()) {
	var done atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !done.Load() && e.t.Context().Err() == nil {
			e.answer(true)
			<-time.After(look)
		}
	}()
	return func() {
		done.Store(true)
		<-ended
	}
}

// installGatewayAPI installs the definition of HTTPRoutes in the cluster.
func installGatewayAPI(t *testing.T, admin dynamic.Interface) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard", "gateway.networking.k8s.io_httproutes.yaml"))
	require.NoError(t, err)
	crd := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal(data, &crd.Object))
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	_, err = admin.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{})
	require.NoError(t, err)
}

func TestRoutes_AreWrittenAsHTTPRoutes(t *testing.T) {
	const ready, draining = windlassv1.InstanceStatus_INSTANCE_STATUS_READY, windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	e := newEdge(t)
	app := e.id("app")
	e.open(e.deployment("dep_1", ""), e.deployment("dep_2", "v2.chat.test"), e.routes(1, nil, 90, 10))
	e.see(ready, ready)

	// The follower reports a missing role and waits for it. In a cluster of an earlier run, the
	// role exists already.
	if _, err := e.api.CoreV1().Namespaces().Get(t.Context(), routesNamespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		e.eventually("the role is missing", func() bool { return strings.Contains(e.notes(), "apply deployments/kubernetes/agent-gateway-api.yaml") })
		require.NotEmpty(t, e.table.Routed(app, 0, 1))
		objects, err := kubetest.Manifest("agent-gateway-api.yaml")
		require.NoError(t, err)
		require.NoError(t, kubetest.Create(t.Context(), e.api, objects))
		e.eventually("the CRDs are missing", func() bool { return strings.Contains(e.notes(), "install the Gateway API's standard CRDs") })
		installGatewayAPI(t, e.admin)
	}

	// There is a route with weights and a route of a single version. Each has its instances.
	e.eventually("the route is there", func() bool { return e.weights() == "dep-1=90 dep-2=10" })
	r := e.httpRoute(name(app) + "-0")
	require.Equal(t, []gwv1.Hostname{"chat.test"}, r.Spec.Hostnames)
	require.Equal(t, "edge/public/https", fmt.Sprintf("%s/%s/%s", *r.Spec.ParentRefs[0].Namespace, r.Spec.ParentRefs[0].Name, *r.Spec.ParentRefs[0].SectionName))
	require.EqualValues(t, "0s", *r.Spec.Rules[0].Timeouts.Request)
	e.eventually("the preview is there", func() bool { return e.httpRoute(name(e.id("dep_2"))) != nil })
	require.Equal(t, []gwv1.Hostname{"v2.chat.test"}, e.httpRoute(name(e.id("dep_2"))).Spec.Hostnames)
	require.Equal(t, "10.1.0.1:8000 ready=true terminating=false", e.endpoints("dep_1"))

	// A route counts when a controller has accepted the generation that was written.
	e.eventually("no controller answers", func() bool { return strings.Contains(e.notes(), "is there a Gateway edge/public:https") })
	require.NotEmpty(t, e.table.Routed(app, 0, 1))
	e.answer(true)
	e.eventually("the route is served", func() bool { return e.table.Routed(app, 0, 1) == "" && e.notes() == "" })
	e.route(e.routes(2, &windlassv1.RoutingPolicy{RequestTimeout: durationpb.New(90 * time.Second), MaxInFlight: new(int32(4))}, 50, 50))
	e.eventually("new weights", func() bool { return e.weights() == "dep-1=50 dep-2=50" })
	require.EqualValues(t, "1m30s", *e.httpRoute(name(app) + "-0").Spec.Rules[0].Timeouts.Request)
	e.eventually("the controller has seen an older generation", func() bool { return strings.Contains(e.notes(), "it has processed generation 1, not 2 yet") })
	require.Contains(t, e.notes(), "HTTPRoutes of app chat cannot express maxInFlight")
	require.NotEmpty(t, e.table.Routed(app, 0, 2))
	e.answer(false)
	e.eventually("the route is refused", func() bool { return strings.Contains(e.notes(), "Accepted is False: NotAllowedByListeners: as told") })
	require.NotEmpty(t, e.table.Routed(app, 0, 2))
	stop := e.serve()
	defer func() { stop() }()
	e.eventually("the route is served", func() bool { return e.table.Routed(app, 0, 2) == "" })

	// A draining instance is removed from the endpoints before it is released.
	require.False(t, e.table.Released("ins_1"))
	e.see(draining, ready)
	e.eventually("the endpoint is not ready", func() bool { return e.endpoints("dep_1") == "10.1.0.1:8000 ready=false terminating=true" })
	e.eventually("the instance is released", func() bool { return e.table.Released("ins_1") })

	// Fields that other clients change or remove are put back. Annotations that they add stay.
	routes := e.admin.Resource(httpRoutes).Namespace(routesNamespace)
	_, err := routes.Patch(t.Context(), name(app)+"-0", types.MergePatchType, []byte(`{"metadata":{"annotations":{"example.com/theirs":"x"}},"spec":{"hostnames":["other.test"]}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	e.eventually("the hosts are back", func() bool {
		r := e.httpRoute(name(app) + "-0")
		return slices.Equal(r.Spec.Hostnames, []gwv1.Hostname{"chat.test"}) && r.Annotations["example.com/theirs"] == "x"
	})
	require.NoError(t, routes.Delete(t.Context(), name(app)+"-0", metav1.DeleteOptions{}))
	services := e.api.CoreV1().Services(routesNamespace)
	require.NoError(t, services.Delete(t.Context(), name(e.id("dep_2")), metav1.DeleteOptions{}))
	e.eventually("the fields are back", func() bool {
		_, err := services.Get(t.Context(), name(e.id("dep_2")), metav1.GetOptions{})
		return err == nil && e.weights() == "dep-1=50 dep-2=50"
	})

	// An app that requires keys gets no route, because no data plane would check the keys.
	e.route(e.routes(3, &windlassv1.RoutingPolicy{RequireApiKey: true}, 0, 100))
	e.eventually("no route", func() bool {
		return e.weights() == "none" && e.httpRoute(name(e.id("dep_2"))) == nil && strings.Contains(e.notes(), "it requires API keys")
	})
	e.route(e.routes(4, nil, 0, 100))
	e.eventually("a route again", func() bool { return e.weights() == "dep-2=100" && e.table.Routed(app, 0, 4) == "" })

	// Another agent takes over the existing routes, and removes routes that are not wanted any
	// more.
	e.halt()
	e.open(e.deployment("dep_2", ""), e.routes(4, nil, 0, 100))
	e.see(ready, ready)
	e.eventually("the preview has gone", func() bool { return e.httpRoute(name(e.id("dep_2"))) == nil })
	e.eventually("the route is served", func() bool { return e.table.Routed(app, 0, 4) == "" })
	require.Equal(t, "dep-2=100", e.weights())

	e.route(e.routes(5, nil))
	e.eventually("all objects are gone", func() bool {
		ours := metav1.ListOptions{LabelSelector: "windlass.run/region=" + e.cfg.Region}
		list, err := routes.List(t.Context(), ours)
		require.NoError(t, err)
		left, err := services.List(t.Context(), ours)
		require.NoError(t, err)
		return len(list.Items)+len(left.Items) == 0 && e.table.Routed(app, 0, 5) == ""
	})
}
