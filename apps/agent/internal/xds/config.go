package xds

import (
	"cmp"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	weightedv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/client_side_weighted_round_robin/v3"
	roundrobinv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

const (
	// RouteName is the route configuration's name.
	RouteName = "windlass"
	// nowhere is the name of the cluster without endpoints, for routes that lead nowhere.
	nowhere = "windlass-nowhere"
	// unbounded is more requests than any instance has in flight. Without it, Envoy's default of
	// 1,024 would be a limit that the route's policy does not have.
	unbounded = 1 << 24
	// fewest is how many random endpoints are compared to find the one with the fewest requests.
	// gRPC compares at most ten.
	fewest = 10
	// connectTimeout is the timeout for connections to instances in the region's own network.
	connectTimeout = 5 * time.Second
)

// config has all resources, by name. It is always replaced, and never changed.
type config struct {
	clusters  map[string]*clusterv3.Cluster
	endpoints map[string]*endpointv3.ClusterLoadAssignment
	routes    *routev3.RouteConfiguration
	listeners map[string]*listenerv3.Listener
}

// part has the resources of one app in the config.
type part struct {
	change    int64
	clusters  map[string]*clusterv3.Cluster
	endpoints map[string]*endpointv3.ClusterLoadAssignment
	hosts     []*routev3.VirtualHost
}

// partOf returns the part of an app. region is the locality of endpoints.
func partOf(r *gatewayv1.AppRoutes, region string) *part {
	p := &part{change: r.Change, clusters: map[string]*clusterv3.Cluster{}, endpoints: map[string]*endpointv3.ClusterLoadAssignment{}}
	for _, t := range r.Targets {
		p.clusters[t.DeploymentId] = clusterOf(t.DeploymentId, r.Policy)
		p.endpoints[t.DeploymentId] = endpointsOf(t, region)
	}
	keyed := r.Policy.GetRequireApiKey()
	switch {
	case len(r.Hosts) == 0:
	case keyed:
		p.hosts = append(p.hosts, keyedHost(r.AppId, r.Hosts))
	default:
		p.hosts = append(p.hosts, hostOf(r.AppId, r.Hosts, r.Targets, r))
	}
	for _, preview := range r.Previews {
		name, hosts := r.AppId+"/"+preview.DeploymentId, []string{preview.Host}
		if keyed || preview.RequireApiKey {
			p.hosts = append(p.hosts, keyedHost(name, hosts))
			continue
		}
		only := []*gatewayv1.Target{{DeploymentId: preview.DeploymentId, Weight: 1}}
		p.hosts = append(p.hosts, hostOf(name, hosts, only, r))
	}
	return p
}

// keyedHost returns a host that requires an API key. It refuses all requests, because Envoys and
// gRPC clients do not check keys. A gRPC client finds no route that it could use.
func keyedHost(name string, domains []string) *routev3.VirtualHost {
	return &routev3.VirtualHost{
		Name: name, Domains: domains,
		Routes: []*routev3.Route{{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
				Status: http.StatusUnauthorized,
				Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{
					InlineString: "this app requires an API key, which only Windlass's own gateways check\n",
				}},
			}},
		}},
	}
}

// assembleConfig returns the config of all apps, by id. If two apps have the same host, the app that
// changed last gets it, because an Envoy refuses all routes if a domain occurs twice.
func assembleConfig(parts map[string]*part) *config {
	c := &config{
		clusters:  map[string]*clusterv3.Cluster{nowhere: clusterOf(nowhere, nil)},
		endpoints: map[string]*endpointv3.ClusterLoadAssignment{nowhere: {ClusterName: nowhere}},
		// Hosts are compared without the port of the request.
		routes:    &routev3.RouteConfiguration{Name: RouteName, IgnorePortInHostMatching: true},
		listeners: map[string]*listenerv3.Listener{},
	}
	newest := slices.SortedFunc(maps.Keys(parts), func(a, b string) int {
		return cmp.Or(cmp.Compare(parts[b].change, parts[a].change), cmp.Compare(a, b))
	})
	taken := map[string]bool{}
	for _, id := range newest {
		p := parts[id]
		maps.Copy(c.clusters, p.clusters)
		maps.Copy(c.endpoints, p.endpoints)
		for _, host := range p.hosts {
			free := slices.DeleteFunc(slices.Clone(host.Domains), func(d string) bool { return taken[d] })
			if len(free) == 0 {
				continue
			}
			if len(free) < len(host.Domains) {
				host = proto.CloneOf(host)
				host.Domains = free
			}
			c.routes.VirtualHosts = append(c.routes.VirtualHosts, host)
			for _, domain := range free {
				taken[domain] = true
				c.listeners[domain] = listenerOf(domain, host)
			}
		}
	}
	slices.SortFunc(c.routes.VirtualHosts, func(a, b *routev3.VirtualHost) int { return cmp.Compare(a.Name, b.Name) })
	return c
}

// stagesBetween returns the configs that lead from now, which Envoys have, to next. At no moment does a
// route lead to a cluster that is missing or has no endpoints yet. Each stage must be acknowledged
// before the next one is sent. The last stage is next.
func stagesBetween(now, next *config) []*config {
	if now == nil || proto.Equal(now.routes, next.routes) && sameKeys(now.clusters, next.clusters) {
		return []*config{next}
	}
	both := &config{
		clusters: maps.Clone(now.clusters), endpoints: maps.Clone(now.endpoints),
		routes: now.routes, listeners: now.listeners,
	}
	maps.Copy(both.clusters, next.clusters)
	maps.Copy(both.endpoints, next.endpoints)
	moved := &config{clusters: both.clusters, endpoints: both.endpoints, routes: next.routes, listeners: next.listeners}
	out := []*config{both, moved}
	if !sameKeys(both.clusters, next.clusters) {
		out = append(out, next)
	}
	return out
}

func sameKeys[V any](a, b map[string]V) bool {
	if len(a) != len(b) {
		return false
	}
	for k := range a {
		if _, ok := b[k]; !ok {
			return false
		}
	}
	return true
}

func adsSource() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

func clusterOf(name string, policy *gatewayv1.RoutePolicy) *clusterv3.Cluster {
	limit := &clusterv3.CircuitBreakers_Thresholds{
		MaxConnections: wrapperspb.UInt32(unbounded), MaxPendingRequests: wrapperspb.UInt32(unbounded),
		MaxRequests: wrapperspb.UInt32(unbounded), MaxRetries: wrapperspb.UInt32(unbounded),
	}
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource()},
		ConnectTimeout:       durationpb.New(connectTimeout),
		// With the defaults, five 5xx answers or refused connections in a row eject an endpoint for
		// 30 s.
		OutlierDetection: &clusterv3.OutlierDetection{},
		CircuitBreakers:  &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{limit}},
	}
	switch policy.GetBalancing() {
	case gatewayv1.Balancing_BALANCING_ROUND_ROBIN:
		c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	case gatewayv1.Balancing_BALANCING_WEIGHTED:
		c.LbPolicy, c.LoadBalancingPolicy = clusterv3.Cluster_ROUND_ROBIN, byLoad()
	case gatewayv1.Balancing_BALANCING_AFFINITY:
		c.LbPolicy = clusterv3.Cluster_RING_HASH
	case gatewayv1.Balancing_BALANCING_LEAST_REQUESTS:
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
		c.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{
			ChoiceCount: wrapperspb.UInt32(fewest),
		}}
	default: // the better of two random endpoints
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	}
	return c
}

// byLoad returns a list of policies. A client uses the first policy that it knows. The first policy
// is round robin weighted by the load that instances report, with the defaults of gRFC A58, which
// the gateway also has. The second is plain round robin. Without reported load, the first is also
// plain round robin, because clients do not measure instances themselves. A client that does not
// know lists of policies uses the cluster's LbPolicy.
func byLoad() *clusterv3.LoadBalancingPolicy {
	out := &clusterv3.LoadBalancingPolicy{}
	for _, p := range []struct {
		name   string
		config proto.Message
	}{
		{"envoy.load_balancing_policies.client_side_weighted_round_robin", &weightedv3.ClientSideWeightedRoundRobin{}},
		{"envoy.load_balancing_policies.round_robin", &roundrobinv3.RoundRobin{}},
	} {
		out.Policies = append(out.Policies, &clusterv3.LoadBalancingPolicy_Policy{
			TypedExtensionConfig: &corev3.TypedExtensionConfig{Name: p.name, TypedConfig: anyOf(p.config)},
		})
	}
	return out
}

// endpointsOf returns the instances to which requests may be sent. It leaves out instances that
// drain or were never ready, because a data plane with too few healthy endpoints sends to all
// endpoints.
func endpointsOf(t *gatewayv1.Target, region string) *endpointv3.ClusterLoadAssignment {
	var all []*endpointv3.LbEndpoint
	for _, in := range t.Instances {
		health := corev3.HealthStatus_HEALTHY
		switch in.State {
		case gatewayv1.Instance_STATE_READY:
		case gatewayv1.Instance_STATE_NOT_READY:
			if !in.GetWasReady() {
				continue
			}
			health = corev3.HealthStatus_UNHEALTHY
		default:
			continue
		}
		if address := addressOf(in.Address); address != nil {
			all = append(all, &endpointv3.LbEndpoint{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
				HealthStatus:   health,
			})
		}
	}
	out := &endpointv3.ClusterLoadAssignment{ClusterName: t.DeploymentId}
	if len(all) > 0 {
		out.Endpoints = []*endpointv3.LocalityLbEndpoints{{
			Locality: &corev3.Locality{Region: region}, LoadBalancingWeight: wrapperspb.UInt32(1), LbEndpoints: all,
		}}
	}
	return out
}

// addressOf returns an address, or nil if the text is not ip:port, because endpoints are not
// resolved.
func addressOf(hostPort string) *corev3.Address {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return nil
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(number)},
	}}}
}

// hostOf returns the virtual host of an app, or of a preview.
func hostOf(name string, domains []string, targets []*gatewayv1.Target, r *gatewayv1.AppRoutes) *routev3.VirtualHost {
	policy := r.GetPolicy()
	action := &routev3.RouteAction{
		// 0 means that a stream has no time limit.
		Timeout:     durationpb.New(policy.GetRequestTimeout().AsDuration()),
		IdleTimeout: policy.GetIdleTimeout(),
	}
	if n := policy.GetRetries(); n > 0 {
		action.RetryPolicy = &routev3.RetryPolicy{
			// These requests reached no instance, so they are safe to retry with any method. Other
			// requests may have had an effect.
			RetryOn: "connect-failure,refused-stream,reset-before-request", NumRetries: wrapperspb.UInt32(uint32(n)),
		}
	}
	if hash := hashOf(policy); hash != nil {
		action.HashPolicy = []*routev3.RouteAction_HashPolicy{hash}
	}
	var weighted []*routev3.WeightedCluster_ClusterWeight
	for _, t := range targets {
		if t.Weight > 0 {
			weighted = append(weighted, &routev3.WeightedCluster_ClusterWeight{Name: t.DeploymentId, Weight: wrapperspb.UInt32(uint32(t.Weight))})
		}
	}
	switch len(weighted) {
	case 0:
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: nowhere}
	case 1:
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: weighted[0].Name}
	default:
		action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{Clusters: weighted}}
	}
	var routes []*routev3.Route
	for _, closed := range r.GetClosedPaths() {
		routes = append(routes, &routev3.Route{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: closed}, CaseSensitive: wrapperspb.Bool(false)},
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
				Status: http.StatusForbidden,
				Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{
					InlineString: "this path loads, unloads or lists models, which only the region's agent may do\n",
				}},
			}},
		})
	}
	return &routev3.VirtualHost{
		Name: name, Domains: slices.Clone(domains),
		Routes: append(routes, &routev3.Route{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}},
			Action: &routev3.Route_Route{Route: action},
		}),
	}
}

func hashOf(policy *gatewayv1.RoutePolicy) *routev3.RouteAction_HashPolicy {
	if policy.GetBalancing() != gatewayv1.Balancing_BALANCING_AFFINITY {
		return nil
	}
	switch {
	case policy.GetAffinityHeader() != "":
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_Header_{
			Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: policy.GetAffinityHeader()},
		}}
	case policy.GetAffinityCookie() != "":
		return &routev3.RouteAction_HashPolicy{PolicySpecifier: &routev3.RouteAction_HashPolicy_Cookie_{
			Cookie: &routev3.RouteAction_HashPolicy_Cookie{Name: policy.GetAffinityCookie()},
		}}
	}
	return nil
}

// listenerOf returns the listener that a gRPC client requests by the name of its target.
func listenerOf(domain string, host *routev3.VirtualHost) *listenerv3.Listener {
	manager := &hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: domain, VirtualHosts: []*routev3.VirtualHost{host},
		}},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: anyOf(&routerv3.Router{})},
		}},
	}
	return &listenerv3.Listener{Name: domain, ApiListener: &listenerv3.ApiListener{ApiListener: anyOf(manager)}}
}

func anyOf(m proto.Message) *anypb.Any {
	out, err := anypb.New(m)
	if err != nil {
		panic(err) // cannot happen: the messages have the types of this file
	}
	return out
}

// versions has numbers that grow with each change, by kind of resource.
type versions struct{ clusters, endpoints, routes int64 }

// versionsAfter returns the versions of next, which follows now. v has the versions of now.
func (v versions) versionsAfter(now, next *config) versions {
	if now == nil {
		return versions{1, 1, 1}
	}
	if !sameMessages(now.clusters, next.clusters) {
		v.clusters++
	}
	if !sameMessages(now.endpoints, next.endpoints) {
		v.endpoints++
	}
	if !proto.Equal(now.routes, next.routes) {
		v.routes++
	}
	return v
}

func sameMessages[M interface {
	comparable
	proto.Message
}](a, b map[string]M) bool {
	if len(a) != len(b) {
		return false
	}
	for k, m := range a {
		other, ok := b[k]
		if !ok || m != other && !proto.Equal(m, other) {
			return false
		}
	}
	return true
}
