package gatewayapi

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

var here = target{namespace: "windlass-routes", region: "eu", parent: Parent{Namespace: "edge", Name: "public"}}

func TestParent_IsNamespaceAndNameAndMayHaveASection(t *testing.T) {
	for text, want := range map[string]Parent{"edge/public": {"edge", "public", ""}, "edge/public:https": {"edge", "public", "https"}} {
		got, err := ParseParent(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, text, got.String())
	}
	for _, bad := range []string{"", "public", "/public", "edge/", "edge/public:", "a/b/c", "edge/:https"} {
		_, err := ParseParent(bad)
		require.ErrorContains(t, err, "use NAMESPACE/NAME of a Gateway", bad)
	}
}

func TestInstances_AreEndpointsOfTheirDeploymentsService(t *testing.T) {
	const ready, broken, draining = gatewayv1.Instance_STATE_READY, gatewayv1.Instance_STATE_NOT_READY, gatewayv1.Instance_STATE_DRAINING
	target := &gatewayv1.Target{DeploymentId: "dep_1"}
	add := func(id, address string, state gatewayv1.Instance_State) {
		target.Instances = append(target.Instances, &gatewayv1.Instance{InstanceId: id, Address: address, State: state})
	}
	add("c", "10.0.0.3:8000", draining)
	add("a", "10.0.0.1:8000", ready)
	add("b", "10.0.0.2:8000", broken)
	add("d", "10.0.0.4:9000", ready)
	add("e", "[fd00::1]:8000", ready)
	add("f", "by.name:80", ready)
	for i := range 120 {
		add(fmt.Sprintf("x%03d", i), fmt.Sprintf("10.0.1.%d:8000", i), ready)
	}
	o := objectsOf(&gatewayv1.AppRoutes{AppId: "app_1", Targets: []*gatewayv1.Target{target}}, here)
	require.Equal(t, []string{"dep-1"}, slices.Collect(maps.Keys(o.services)))
	require.Empty(t, o.services["dep-1"].Spec.Selector)
	require.Equal(t, []string{"dep-1-ipv4-8000-0", "dep-1-ipv4-8000-1", "dep-1-ipv4-9000-0", "dep-1-ipv6-8000-0"}, slices.Sorted(maps.Keys(o.slices)))
	first := o.slices["dep-1-ipv4-8000-0"]
	require.Len(t, first.Endpoints, 100)
	require.Len(t, o.slices["dep-1-ipv4-8000-1"].Endpoints, 23)
	require.Equal(t, "dep-1", first.Labels[discoveryv1.LabelServiceName])
	require.NotEqual(t, "endpointslice-controller.k8s.io", first.Labels[discoveryv1.LabelManagedBy])
	var got []string
	for _, e := range first.Endpoints[:3] {
		got = append(got, fmt.Sprintf("%s %t %t %t", e.Addresses[0], *e.Conditions.Ready, *e.Conditions.Serving, *e.Conditions.Terminating))
	}
	require.Equal(t, []string{"10.0.0.1 true true false", "10.0.0.2 false false false", "10.0.0.3 false false true"}, got)
	require.Equal(t, discoveryv1.AddressTypeIPv6, o.slices["dep-1-ipv6-8000-0"].AddressType)
}

func TestHosts_AreSplitOverRoutes(t *testing.T) {
	r := &gatewayv1.AppRoutes{AppId: "app_01A", AppName: "chat", Targets: []*gatewayv1.Target{{DeploymentId: "dep_1", Weight: 90}, {DeploymentId: "dep_2", Weight: 10}, {DeploymentId: "dep_3"}}}
	for i := range 20 {
		r.Hosts = append(r.Hosts, fmt.Sprintf("h%02d.test", i))
	}
	r.Previews = []*gatewayv1.Preview{{Host: "v3.test", DeploymentId: "dep_3"}, {Host: "v2.test", DeploymentId: "dep_2", RequireApiKey: true}}
	o := objectsOf(r, here)
	require.Equal(t, []string{"app-01a-0", "app-01a-1", "dep-3"}, slices.Sorted(maps.Keys(o.routes)))
	require.Equal(t, []string{"host v2.test of app chat has no HTTPRoute: it requires API keys, which no Gateway checks"}, o.notes)
	require.Len(t, o.routes["app-01a-0"].Spec.Hostnames, 16)
	require.Len(t, o.routes["app-01a-1"].Spec.Hostnames, 4)
	for name, route := range o.routes {
		require.Empty(t, validation.IsDNS1123Subdomain(name))
		backends := route.Spec.Rules[0].BackendRefs
		if name == "dep-3" {
			require.Len(t, backends, 1)
			continue
		}
		require.Equal(t, []any{gwv1.ObjectName("dep-1"), int32(90), gwv1.ObjectName("dep-2"), int32(10)},
			[]any{backends[0].Name, *backends[0].Weight, backends[1].Name, *backends[1].Weight})
		require.Len(t, backends, 2, "a target without weight has no backend")
	}
	require.Len(t, o.services, 3)

	r.Policy = &gatewayv1.RoutePolicy{RequireApiKey: true, MaxInFlight: new(int32(1))}
	o = objectsOf(r, here)
	require.Empty(t, o.routes)
	require.Equal(t, []string{"app chat has no HTTPRoute: it requires API keys, which no Gateway checks"}, o.notes)
	r.Policy = &gatewayv1.RoutePolicy{MaxInFlight: new(int32(1)), Cors: &gatewayv1.Cors{}, CrossRegion: gatewayv1.CrossRegion_CROSS_REGION_OFF}
	r.Previews = nil
	require.Equal(t, []string{"HTTPRoutes of app chat cannot express maxInFlight, cors"}, objectsOf(r, here).notes)
	for i := range 17 {
		r.Targets = append(r.Targets, &gatewayv1.Target{DeploymentId: fmt.Sprintf("more_%d", i), Weight: 1})
	}
	r.Policy = nil
	require.Equal(t, []string{"app chat has no HTTPRoute: 19 versions share its hosts, and an HTTPRoute has room for 16"}, objectsOf(r, here).notes)
}

func TestHosts_WithoutTargetsHaveAServiceWithoutEndpoints(t *testing.T) {
	o := objectsOf(&gatewayv1.AppRoutes{AppId: "app_1", Hosts: []string{"chat.test"}}, here)
	backends := o.routes["app-1-0"].Spec.Rules[0].BackendRefs
	require.Len(t, backends, 1)
	require.Contains(t, o.services, string(backends[0].Name))
	require.Empty(t, o.slices)
}

func TestTimeout_HasTheFormOfTheAPI(t *testing.T) {
	for d, want := range map[time.Duration]gwv1.Duration{
		0: "0s", time.Second: "1s", 90 * time.Minute: "1h30m", 24*time.Hour + 1500*time.Millisecond: "24h1s500ms", time.Microsecond: "1ms",
	} {
		require.Equal(t, want, durationText(d))
		require.Regexp(t, `^([0-9]{1,5}(h|m|s|ms)){1,4}$`, string(durationText(d)))
	}
}

func TestRoute_IsServedOnceEveryGatewayAccepts(t *testing.T) {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	namespace, section := gwv1.Namespace("edge"), gwv1.SectionName("https")
	parent := Parent{Namespace: "edge", Name: "public", Section: "https"}
	said := func(accepted, resolved metav1.ConditionStatus, generation int64, change ...func(*gwv1.RouteParentStatus)) gwv1.RouteParentStatus {
		s := gwv1.RouteParentStatus{
			ParentRef: gwv1.ParentReference{Namespace: &namespace, Name: "public", SectionName: &section}, ControllerName: "example.com/edge",
			Conditions: []metav1.Condition{
				{Type: "Accepted", Status: accepted, Reason: "Because", Message: "so it is", ObservedGeneration: generation},
				{Type: "ResolvedRefs", Status: resolved, Reason: "BackendNotFound", Message: "no Service", ObservedGeneration: generation},
			},
		}
		for _, c := range change {
			c(&s)
		}
		return s
	}
	other := func(s *gwv1.RouteParentStatus) { s.ParentRef.SectionName = nil }
	for _, c := range []struct {
		parents []gwv1.RouteParentStatus
		why     string
	}{
		{nil, "no controller has reported a status: is there a Gateway edge/public:https, and a controller for it?"},
		{[]gwv1.RouteParentStatus{said(yes, yes, 3, other)}, "no controller has reported a status: is there a Gateway edge/public:https, and a controller for it?"},
		{[]gwv1.RouteParentStatus{said(yes, yes, 3)}, ""},
		{[]gwv1.RouteParentStatus{said(yes, yes, 4), said(no, no, 3, other)}, ""},
		{[]gwv1.RouteParentStatus{said(yes, yes, 2)}, "example.com/edge of Gateway edge/public:https: it has processed generation 2, not 3 yet"},
		{[]gwv1.RouteParentStatus{said(no, yes, 3)}, "example.com/edge of Gateway edge/public:https: Accepted is False: Because: so it is"},
		{[]gwv1.RouteParentStatus{said(yes, yes, 3), said(yes, no, 3)}, "example.com/edge of Gateway edge/public:https: ResolvedRefs is False: BackendNotFound: no Service"},
		{[]gwv1.RouteParentStatus{said(yes, yes, 3, func(s *gwv1.RouteParentStatus) { s.Conditions = s.Conditions[:1] })}, "example.com/edge of Gateway edge/public:https: the condition ResolvedRefs is missing"},
	} {
		route := &gwv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "windlass-routes", Generation: 3}}
		route.Status.Parents = c.parents
		require.Equal(t, c.why, whyNotServed(route, parent))
	}
}

func TestClosedPaths_LeadNowhere(t *testing.T) {
	o := objectsOf(&gatewayv1.AppRoutes{
		AppId: "app_1", Hosts: []string{"chat.test"}, Targets: []*gatewayv1.Target{{DeploymentId: "dep_1", Weight: 1}}, ClosedPaths: []string{"/v2/repository", "/v1/load_lora_adapter"},
	}, here)
	rules := o.routes["app-1-0"].Spec.Rules
	require.Len(t, rules, 3)
	for i, closed := range []string{"/v2/repository", "/v1/load_lora_adapter"} {
		require.Equal(t, closed, *rules[i].Matches[0].Path.Value)
		require.Equal(t, gwv1.PathMatchPathPrefix, *rules[i].Matches[0].Path.Type)
		require.Empty(t, rules[i].BackendRefs)
	}
	require.Len(t, rules[2].BackendRefs, 1)
}

// A prefix of the Gateway API ends at a slash, and differs between capitals and others.
func TestClosedPaths_OfGRPCAreWholeCalls(t *testing.T) {
	rules := closedRules([]string{"/inference.grpcinferenceservice/repository"})
	var paths []string
	for _, rule := range rules {
		require.Equal(t, gwv1.PathMatchExact, *rule.Matches[0].Path.Type)
		paths = append(paths, *rule.Matches[0].Path.Value)
	}
	require.Equal(t, []string{
		"/inference.GRPCInferenceService/RepositoryIndex", "/inference.GRPCInferenceService/RepositoryModelLoad", "/inference.GRPCInferenceService/RepositoryModelUnload",
	}, paths)
}
