package gateways

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// policy returns a policy with every field set. Its affinity is a header.
func policy() *windlassv1.RoutingPolicy {
	return &windlassv1.RoutingPolicy{
		Balancing: windlassv1.RoutingPolicy_BALANCING_AFFINITY, Affinity: &windlassv1.Affinity{Header: "X-Session"},
		ResponseTimeout: durationpb.New(time.Second), IdleTimeout: durationpb.New(2 * time.Second), RequestTimeout: durationpb.New(3 * time.Second),
		QueueSize: new(int32(4)), QueueWait: durationpb.New(5 * time.Second), Retries: new(int32(6)), MaxInFlight: new(int32(7)), MaxBodyBytes: new(int64(8)),
		Cors: &windlassv1.Cors{
			AllowedOrigins: []string{"https://a.test"}, AllowedMethods: []string{"PUT"}, AllowedHeaders: []string{"X-A"}, ExposedHeaders: []string{"X-B"},
			Credentials: true, MaxAge: durationpb.New(9 * time.Second),
		},
		PayloadLog:  &windlassv1.PayloadLog{Sample: 0.5, MaxBytes: 10, Redact: []string{"content"}},
		CrossRegion: windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER, RequireApiKey: true,
		ColdStart: &windlassv1.ColdStart{Hold: durationpb.New(11 * time.Second), MaxHeld: new(int32(12)), Heartbeat: true, Elsewhere: true},
	}
}

func TestPolicy_EveryFieldReachesGateways(t *testing.T) {
	from := policy()
	for _, m := range []proto.Message{from, from.Cors, from.PayloadLog, from.ColdStart} {
		for f := range fields(m) {
			require.True(t, m.ProtoReflect().Has(f), "%s: set this field above", f.FullName())
		}
	}
	got := policyOf(from)
	for _, m := range []proto.Message{got, got.Cors, got.PayloadLog, got.ColdStart} {
		for f := range fields(m) {
			require.True(t, m.ProtoReflect().Has(f) || f.Name() == "affinity_cookie", "%s does not reach gateways", f.FullName())
		}
	}
	want := &gatewayv1.RoutePolicy{
		Balancing: gatewayv1.Balancing_BALANCING_AFFINITY, Affinity: &gatewayv1.RoutePolicy_AffinityHeader{AffinityHeader: "X-Session"},
		ResponseTimeout: durationpb.New(time.Second), IdleTimeout: durationpb.New(2 * time.Second), RequestTimeout: durationpb.New(3 * time.Second),
		QueueSize: new(int32(4)), QueueWait: durationpb.New(5 * time.Second), Retries: new(int32(6)), MaxInFlight: new(int32(7)), MaxBodyBytes: new(int64(8)),
		Cors: &gatewayv1.Cors{
			AllowedOrigins: []string{"https://a.test"}, AllowedMethods: []string{"PUT"}, AllowedHeaders: []string{"X-A"}, ExposedHeaders: []string{"X-B"},
			Credentials: true, MaxAge: durationpb.New(9 * time.Second),
		},
		PayloadLog:  &gatewayv1.PayloadLog{Sample: 0.5, MaxBytes: 10, Redact: []string{"content"}},
		CrossRegion: gatewayv1.CrossRegion_CROSS_REGION_FAILOVER, RequireApiKey: true,
		ColdStart: &gatewayv1.ColdStart{Hold: durationpb.New(11 * time.Second), MaxHeld: new(int32(12)), Heartbeat: true, Elsewhere: true},
	}
	require.True(t, proto.Equal(want, got), "%v", got)

	from.Affinity = &windlassv1.Affinity{Cookie: "session"}
	require.Equal(t, "session", policyOf(from).GetAffinityCookie())
	values := windlassv1.RoutingPolicy_Balancing(0).Descriptor().Values()
	for i := range values.Len() {
		v := windlassv1.RoutingPolicy_Balancing(values.Get(i).Number())
		require.Equal(t, v.String(), balancing[v].String())
	}
	for i := range windlassv1.RoutingPolicy_CrossRegion(0).Descriptor().Values().Len() {
		v := windlassv1.RoutingPolicy_CrossRegion(i)
		require.Equal(t, v.String(), crossRegion[v].String())
	}
	require.Nil(t, policyOf(nil))
}

func fields(m proto.Message) func(func(protoreflect.FieldDescriptor) bool) {
	all := m.ProtoReflect().Descriptor().Fields()
	return func(yield func(protoreflect.FieldDescriptor) bool) {
		for i := range all.Len() {
			if !yield(all.Get(i)) {
				return
			}
		}
	}
}

func TestPolicy_IsServedWithItsGeneration(t *testing.T) {
	tab := newTable(func(string) *agentv1.DeploymentState { return nil })
	route := func(p *windlassv1.RoutingPolicy) *agentv1.Routes {
		return &agentv1.Routes{AppId: "app_1", Hosts: []string{"chat.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep_1", Weight: 100}}, Policy: p}
	}
	require.NotEmpty(t, tab.setRoute(route(nil), 1, 1))
	require.Nil(t, tab.apps["app_1"].state.Policy)
	first := tab.apps["app_1"].state.Change

	require.Equal(t, []string{"app_1"}, tab.setRoute(route(policy()), 1, 2))
	told := tab.apps["app_1"].state
	require.Equal(t, int64(2), told.Generation)
	require.Greater(t, told.Change, first)
	require.Equal(t, "X-Session", told.Policy.GetAffinityHeader())
	require.Equal(t, told.Change, tab.apps["app_1"].routeChange, "generation 2 counts as served only once gateways serve its policy")

	require.Empty(t, tab.setRoute(route(nil), 1, 1), "an older generation does not remove the policy")
	require.NotEmpty(t, tab.setRoute(route(nil), 1, 3))
	require.Nil(t, tab.apps["app_1"].state.Policy)

	require.NotEmpty(t, tab.setRoute(&agentv1.Routes{AppId: "app_1", Policy: policy()}, 1, 4), "a message without hosts means that there is no route")
	require.Nil(t, tab.apps["app_1"].state.Policy)
}

func TestRoute_WithoutTargetsHasItsHosts(t *testing.T) {
	tb := newTable(func(string) *agentv1.DeploymentState {
		return &agentv1.DeploymentState{Deployment: &agentv1.Deployment{AppName: "chat"}}
	})
	tb.setRoute(&agentv1.Routes{AppId: "app_1", Hosts: []string{"chat.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep_1", Weight: 100}}}, 1, 1)
	tb.setRoute(&agentv1.Routes{AppId: "app_1", Hosts: []string{"chat.test"}}, 1, 2)
	told := tb.apps["app_1"].state
	require.Equal(t, []string{"chat.test"}, told.Hosts)
	require.Empty(t, told.Targets)
	require.Equal(t, []any{"chat", int64(2)}, []any{told.AppName, told.Generation})
	tb.setRoute(&agentv1.Routes{AppId: "app_1"}, 1, 3)
	require.True(t, tb.apps["app_1"].isGone())
}

// A preview of a version that requires keys requires them even before the app's keys are known.
func TestKeys_AreSentAndPreviewsRequireThem(t *testing.T) {
	state := &agentv1.DeploymentState{Action: agentv1.DeploymentState_ACTION_APPLY, Deployment: &agentv1.Deployment{
		Id: "dep_1", AppId: "app_1", PreviewHost: "v1.chat.test",
		Spec: &windlassv1.DeploymentSpec{Routing: &windlassv1.RoutingPolicy{RequireApiKey: true}},
	}}
	tab := newTable(func(string) *agentv1.DeploymentState { return state })
	tab.setDeployment("dep_1", state)
	told := tab.apps["app_1"].state
	require.True(t, told.Previews[0].RequireApiKey)
	require.Empty(t, told.ApiKeys)
	require.Nil(t, told.Policy)

	route := &agentv1.Routes{
		AppId: "app_1", Hosts: []string{"chat.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep_1", Weight: 100}},
		Keys: []*agentv1.AppKey{{Name: "mobile", Hash: []byte{1}, ExpiresAt: 5}},
	}
	require.Equal(t, []string{"app_1"}, tab.setRoute(route, 1, 1))
	told = tab.apps["app_1"].state
	require.Len(t, told.ApiKeys, 1)
	require.True(t, proto.Equal(&gatewayv1.ApiKey{Name: "mobile", Hash: []byte{1}, ExpiresAt: 5}, told.ApiKeys[0]))
}

func TestHealthCheck_OnThePortOfRequestsIsSent(t *testing.T) {
	require.Nil(t, checkOf(nil), "not known")
	defaults := &gatewayv1.HealthCheck{Path: "/health", Method: "GET", Timeout: durationpb.New(5 * time.Second)}
	require.True(t, proto.Equal(defaults, checkOf(&windlassv1.DeploymentSpec{})))
	spec := &windlassv1.DeploymentSpec{
		Ports:       []*windlassv1.Port{{Name: "http"}, {Name: "admin"}},
		HealthCheck: &windlassv1.HealthCheck{Path: "/ready", Port: "http", Method: "HEAD", Timeout: durationpb.New(time.Second), ExpectedCodes: []string{"204"}},
	}
	require.True(t, proto.Equal(&gatewayv1.HealthCheck{Path: "/ready", Method: "HEAD", Timeout: durationpb.New(time.Second), ExpectedCodes: []string{"204"}}, checkOf(spec)))
	spec.HealthCheck.Port = "admin"
	require.Nil(t, checkOf(spec), "a gateway checks only the port that it sends requests to")
}

func TestModels_CallsThatLoadThemAreClosed(t *testing.T) {
	for name, spec := range map[string]*windlassv1.DeploymentSpec{
		"":       {},
		"model":  {Model: &windlassv1.LoadedModel{}},
		"server": {Models: &windlassv1.ModelServer{}},
	} {
		state := &agentv1.DeploymentState{Action: agentv1.DeploymentState_ACTION_APPLY, Deployment: &agentv1.Deployment{
			Id: "dep_1", AppId: "app_1", PreviewHost: "v1.chat.test", Spec: spec,
		}}
		tab := newTable(func(string) *agentv1.DeploymentState { return state })
		tab.setDeployment("dep_1", state)
		require.Equal(t, name != "", len(tab.apps["app_1"].state.ClosedPaths) > 0, "a preview of %s", name)
		tab.setRoute(&agentv1.Routes{AppId: "app_1", Hosts: []string{"chat.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep_1", Weight: 100}}}, 1, 1)
		require.Equal(t, name != "", len(tab.apps["app_1"].state.ClosedPaths) > 0, "a host of %s", name)
	}
}

func TestModels_ClosePathsWhenTheRouteComesFirst(t *testing.T) {
	var state *agentv1.DeploymentState
	tab := newTable(func(string) *agentv1.DeploymentState { return state })
	tab.setRoute(&agentv1.Routes{AppId: "app_1", Hosts: []string{"chat.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep_1", Weight: 100}}}, 1, 1)
	require.Empty(t, tab.apps["app_1"].state.ClosedPaths)
	state = &agentv1.DeploymentState{Action: agentv1.DeploymentState_ACTION_APPLY, Deployment: &agentv1.Deployment{
		Id: "dep_1", AppId: "app_1", Spec: &windlassv1.DeploymentSpec{Model: &windlassv1.LoadedModel{}},
	}}
	require.Equal(t, []string{"app_1"}, tab.setDeployment("dep_1", state))
	require.NotEmpty(t, tab.apps["app_1"].state.ClosedPaths)
	require.Empty(t, tab.setDeployment("dep_1", state), "nothing changed")
}

func TestModels_RequestsAreHeldWhileTheModelIsUnloaded(t *testing.T) {
	state := &agentv1.DeploymentState{Action: agentv1.DeploymentState_ACTION_APPLY, Deployment: &agentv1.Deployment{
		Id: "dep_1", AppId: "app_1", Replicas: 1, Spec: &windlassv1.DeploymentSpec{
			Model: &windlassv1.LoadedModel{}, Routing: &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}},
		},
	}}
	tab := newTable(func(string) *agentv1.DeploymentState { return state })
	tab.setDeployment("dep_1", state)
	tab.setRoute(&agentv1.Routes{AppId: "app_1", Hosts: []string{"chat.test"}, Targets: []*agentv1.RouteTarget{{DeploymentId: "dep_1", Weight: 100}}}, 1, 1)
	require.True(t, tab.apps["app_1"].state.CountLoad, "the agent must know which models were used last")
	held := func(instances ...runtime.Instance) bool {
		tab.setObserved([]runtime.ObservedDeployment{{DeploymentID: "dep_1", Instances: instances}})
		return tab.apps["app_1"].state.Held
	}
	serving := runtime.Instance{ID: "ins_a", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY, Address: "10.0.0.1:80"}
	draining := serving
	draining.Status = windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING
	unloaded := runtime.Instance{ID: "ins_b", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY, Reason: runtime.ReasonUnloaded}
	require.False(t, held(serving))
	require.False(t, held(serving, unloaded), "another replica serves")
	require.True(t, held(draining, unloaded), "the agent unloads it")
	require.True(t, held(unloaded))
	require.False(t, held(draining), "nothing would load it")
	require.False(t, held(serving))
}
