package xds

import (
	"fmt"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

func app(id string, change int64, host string, targets ...*gatewayv1.Target) *gatewayv1.AppRoutes {
	return &gatewayv1.AppRoutes{AppId: id, Change: change, Hosts: []string{host}, Targets: targets}
}

func target(id string, weight int32, instances ...*gatewayv1.Instance) *gatewayv1.Target {
	return &gatewayv1.Target{DeploymentId: id, Weight: weight, Instances: instances}
}

func TestEndpoint_IsAnInstanceThatMayGetRequests(t *testing.T) {
	got := endpointsOf(target("dep_1", 1,
		&gatewayv1.Instance{InstanceId: "a", Address: "10.0.0.1:80", State: gatewayv1.Instance_STATE_READY},
		&gatewayv1.Instance{InstanceId: "b", Address: "10.0.0.2:80", State: gatewayv1.Instance_STATE_NOT_READY, WasReady: new(true)},
		&gatewayv1.Instance{InstanceId: "b2", Address: "10.0.0.4:80", State: gatewayv1.Instance_STATE_NOT_READY},
		&gatewayv1.Instance{InstanceId: "c", Address: "10.0.0.3:80", State: gatewayv1.Instance_STATE_DRAINING},
		&gatewayv1.Instance{InstanceId: "d", Address: "[fd00::1]:80", State: gatewayv1.Instance_STATE_READY},
		&gatewayv1.Instance{InstanceId: "e", Address: "by.name:80", State: gatewayv1.Instance_STATE_READY},
		&gatewayv1.Instance{InstanceId: "f", Address: "10.0.0.1:99999", State: gatewayv1.Instance_STATE_READY},
		&gatewayv1.Instance{InstanceId: "g", Address: "nonsense", State: gatewayv1.Instance_STATE_READY},
	), "eu")
	require.NoError(t, got.ValidateAll())
	health := map[string]corev3.HealthStatus{}
	for _, e := range got.Endpoints[0].LbEndpoints {
		health[e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()] = e.HealthStatus
	}
	require.Equal(t, map[string]corev3.HealthStatus{
		"10.0.0.1": corev3.HealthStatus_HEALTHY, "10.0.0.2": corev3.HealthStatus_UNHEALTHY, "fd00::1": corev3.HealthStatus_HEALTHY,
	}, health)
	require.Equal(t, "eu", got.Endpoints[0].Locality.Region)
}

func TestRoute_HasItsPolicy(t *testing.T) {
	r := app("app_1", 1, "chat.test", target("dep_1", 1), target("dep_2", 0))
	r.Previews = []*gatewayv1.Preview{{Host: "v2.chat.test", DeploymentId: "dep_2"}}
	retries := int32(2)
	r.Policy = &gatewayv1.RoutePolicy{
		Balancing: gatewayv1.Balancing_BALANCING_AFFINITY, Affinity: &gatewayv1.RoutePolicy_AffinityHeader{AffinityHeader: "X-Session"},
		IdleTimeout: durationpb.New(time.Minute), RequestTimeout: durationpb.New(time.Hour), Retries: &retries,
	}
	p := partOf(r, "eu")
	require.Equal(t, clusterv3.Cluster_RING_HASH, p.clusters["dep_1"].LbPolicy)
	require.Len(t, p.hosts, 2)
	for i, want := range []struct {
		domain, cluster string
	}{{"chat.test", "dep_1"}, {"v2.chat.test", "dep_2"}} {
		require.NoError(t, p.hosts[i].ValidateAll())
		require.Equal(t, []string{want.domain}, p.hosts[i].Domains)
		action := p.hosts[i].Routes[0].GetRoute()
		require.Equal(t, want.cluster, action.GetCluster())
		require.Equal(t, time.Hour, action.Timeout.AsDuration())
		require.Equal(t, time.Minute, action.IdleTimeout.AsDuration())
		require.EqualValues(t, 2, action.RetryPolicy.NumRetries.GetValue())
		require.Equal(t, "X-Session", action.HashPolicy[0].GetHeader().GetHeaderName())
	}
	r.Policy = nil
	action := partOf(r, "eu").hosts[0].Routes[0].GetRoute()
	require.Zero(t, action.Timeout.AsDuration())
	require.NotNil(t, action.Timeout, "without a timeout, an Envoy ends every stream after 15 s")
}

func TestWeighted_IsByLoadWhereSupportedElseRoundRobin(t *testing.T) {
	c := clusterOf("dep_1", &gatewayv1.RoutePolicy{Balancing: gatewayv1.Balancing_BALANCING_WEIGHTED})
	require.NoError(t, c.ValidateAll())
	var types []string
	for _, p := range c.LoadBalancingPolicy.Policies {
		types = append(types, string(p.TypedExtensionConfig.TypedConfig.MessageName().Name()))
	}
	require.Equal(t, []string{"ClientSideWeightedRoundRobin", "RoundRobin"}, types)
	require.Equal(t, clusterv3.Cluster_ROUND_ROBIN, c.LbPolicy, "for clients that do not know lists of policies")
	later := clusterOf("dep_1", &gatewayv1.RoutePolicy{Balancing: 99})
	require.Equal(t, clusterv3.Cluster_LEAST_REQUEST, later.LbPolicy)
	require.Nil(t, later.LoadBalancingPolicy)
}

func TestHost_OfTwoAppsBelongsToTheAppThatChangedLast(t *testing.T) {
	c := assembleConfig(map[string]*part{
		"app_1": partOf(app("app_1", 7, "chat.test", target("dep_1", 1)), "eu"),
		"app_2": partOf(app("app_2", 9, "chat.test", target("dep_2", 1)), "eu"),
	})
	require.Len(t, c.routes.VirtualHosts, 1)
	require.Equal(t, "app_2", c.routes.VirtualHosts[0].Name)
	require.Len(t, c.listeners, 1)
}

func TestHost_WithoutTargetsHasNoEndpoint(t *testing.T) {
	c := assembleConfig(map[string]*part{"app_1": partOf(app("app_1", 1, "chat.test"), "eu")})
	require.Len(t, c.routes.VirtualHosts, 1)
	cluster := c.routes.VirtualHosts[0].Routes[0].GetRoute().GetCluster()
	require.Contains(t, c.clusters, cluster)
	require.Empty(t, c.endpoints[cluster].Endpoints, "an Envoy answers 503")
	require.Contains(t, c.listeners, "chat.test")
}

// Between any two configs, at no stage does a route lead to a missing cluster, or to a cluster that
// came with the same stage. The last stage is the wanted config.
func TestStages_NeverLeadNowhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := func(label string) *config {
			parts := map[string]*part{}
			for a := range rapid.IntRange(0, 3).Draw(t, label+" apps") {
				var targets []*gatewayv1.Target
				for d := range rapid.IntRange(0, 3).Draw(t, label+" deployments") {
					if rapid.Bool().Draw(t, label+" runs") {
						targets = append(targets, target(fmt.Sprintf("dep_%d_%d", a, d), rapid.Int32Range(0, 2).Draw(t, label+" weight")))
					}
				}
				id := fmt.Sprintf("app_%d", a)
				parts[id] = partOf(app(id, rapid.Int64Range(1, 9).Draw(t, label+" change"), fmt.Sprintf("%d.test", a%2), targets...), "eu")
			}
			return assembleConfig(parts)
		}
		now, next := drawn("now"), drawn("next")
		all := stagesBetween(now, next)
		require.NotEmpty(t, all)
		last, v := now, versions{1, 1, 1}
		for _, c := range all {
			for _, to := range leadsTo(c) {
				require.Contains(t, c.clusters, to)
				require.Contains(t, c.endpoints, to)
				require.Contains(t, last.clusters, to, "the cluster was acknowledged before")
			}
			for _, to := range leadsTo(last) {
				require.Contains(t, c.clusters, to, "a route is removed before its cluster")
			}
			after := v.versionsAfter(last, c)
			require.Equal(t, after == v, sameMessages(last.clusters, c.clusters) && sameMessages(last.endpoints, c.endpoints) && proto.Equal(last.routes, c.routes))
			last, v = c, after
		}
		require.True(t, sameMessages(last.clusters, next.clusters))
		require.True(t, proto.Equal(last.routes, next.routes))
	})
}

func leadsTo(c *config) (out []string) {
	for _, host := range c.routes.VirtualHosts {
		action := host.Routes[0].GetRoute()
		if name := action.GetCluster(); name != "" {
			out = append(out, name)
		}
		for _, w := range action.GetWeightedClusters().GetClusters() {
			out = append(out, w.Name)
		}
	}
	return out
}

// Envoys and gRPC clients do not check keys. So a host that requires a key refuses every request.
func TestHost_ThatNeedsAKeyIsRefused(t *testing.T) {
	r := app("app_1", 1, "chat.test", target("dep_1", 1), target("dep_2", 0))
	r.Previews = []*gatewayv1.Preview{{Host: "v1.chat.test", DeploymentId: "dep_1"}, {Host: "v2.chat.test", DeploymentId: "dep_2", RequireApiKey: true}}
	refused := func() (out []string) {
		for _, h := range partOf(r, "eu").hosts {
			require.NoError(t, h.ValidateAll())
			require.Len(t, h.Routes, 1)
			if direct := h.Routes[0].GetDirectResponse(); direct != nil {
				require.EqualValues(t, 401, direct.Status)
				out = append(out, h.Domains...)
			}
		}
		return out
	}
	require.Equal(t, []string{"v2.chat.test"}, refused())
	r.Policy = &gatewayv1.RoutePolicy{RequireApiKey: true}
	require.Equal(t, []string{"chat.test", "v1.chat.test", "v2.chat.test"}, refused())
}

func TestHost_ClosesPaths(t *testing.T) {
	r := app("app_1", 1, "chat.test", target("dep_1", 1))
	r.Previews = []*gatewayv1.Preview{{Host: "v1.chat.test", DeploymentId: "dep_1"}}
	r.ClosedPaths = []string{"/v2/repository"}
	hosts := partOf(r, "eu").hosts
	require.Len(t, hosts, 2)
	for _, h := range hosts {
		require.NoError(t, h.ValidateAll())
		require.Len(t, h.Routes, 2)
		require.Equal(t, "/v2/repository", h.Routes[0].Match.GetPrefix(), "the first matching route is used")
		require.False(t, h.Routes[0].Match.GetCaseSensitive().GetValue())
		require.EqualValues(t, 403, h.Routes[0].GetDirectResponse().GetStatus())
		require.NotNil(t, h.Routes[1].GetRoute())
	}
}
