package gatewayapi

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

const (
	// maxHosts and maxBackends are limits of an HTTPRoute.
	maxHosts, maxBackends = 16, 16
	// maxEndpoints is the maximum number of endpoints in one EndpointSlice, as in Kubernetes' own
	// slices.
	maxEndpoints = 100
	// servicePort is the port of Services. Instances may have other ports.
	servicePort = 80
	portName    = "http"
)

// The labels of all objects of this package.
const (
	// labelManagedBy and labelRegion select these objects. Objects of workloads have these labels,
	// too, but with another managed-by.
	labelManagedBy = "app.kubernetes.io/managed-by"
	managedBy      = "windlass-routes"
	labelRegion    = "windlass.run/region"
	labelApp       = "windlass.run/app"
	// annotationHash is the annotation with the hash of the written content.
	annotationHash = "windlass.run/hash"
)

// Parent is the Gateway that routes are attached to. Section is one of its listeners. An empty
// Section means all listeners.
type Parent struct{ Namespace, Name, Section string }

// ParseParent reads NAMESPACE/NAME[:SECTION].
func ParseParent(s string) (Parent, error) {
	ref, section, sectioned := strings.Cut(s, ":")
	namespace, name, ok := strings.Cut(ref, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") || sectioned && section == "" {
		return Parent{}, fmt.Errorf("%q: use NAMESPACE/NAME of a Gateway, and :SECTION for one of its listeners, like edge/public:https", s)
	}
	return Parent{Namespace: namespace, Name: name, Section: section}, nil
}

func (p Parent) String() string {
	s := p.Namespace + "/" + p.Name
	if p.Section != "" {
		s += ":" + p.Section
	}
	return s
}

// target has the namespace and the region of objects, and the Gateway that they are attached to.
type target struct {
	namespace, region string
	parent            Parent
}

// objects has the objects of an app in the cluster, by name.
type objects struct {
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	routes   map[string]*gwv1.HTTPRoute
	// notes say how the objects differ from the app's routing block.
	notes []string
}

// objectsOf returns the objects of an app. Equal routes give equal objects.
func objectsOf(r *gatewayv1.AppRoutes, at target) objects {
	o := objects{services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{}, routes: map[string]*gwv1.HTTPRoute{}}
	for _, t := range r.Targets {
		o.addService(r, t, at)
	}
	name := cmp.Or(r.AppName, r.AppId)
	keyed := r.Policy.GetRequireApiKey()
	if missing := inexpressibleFields(r.Policy); len(missing) > 0 && !keyed {
		o.notes = append(o.notes, fmt.Sprintf("HTTPRoutes of app %s cannot express %s", name, strings.Join(missing, ", ")))
	}
	if keyed {
		o.notes = append(o.notes, fmt.Sprintf("app %s has no HTTPRoute: it requires API keys, which no Gateway checks", name))
	}
	var shares []*gatewayv1.Target
	for _, t := range r.Targets {
		if t.Weight > 0 {
			shares = append(shares, t)
		}
	}
	switch {
	case keyed:
	case len(shares) > maxBackends:
		o.notes = append(o.notes, fmt.Sprintf("app %s has no HTTPRoute: %d versions share its hosts, and an HTTPRoute has room for %d", name, len(shares), maxBackends))
	default:
		for i, hosts := range slices.Collect(slices.Chunk(slices.Sorted(slices.Values(r.Hosts)), maxHosts)) {
			o.addRoute(r, fmt.Sprintf("%s-%d", objectName(r.AppId), i), hosts, shares, at)
		}
	}
	for _, p := range r.Previews {
		if keyed {
			continue
		}
		if p.RequireApiKey {
			o.notes = append(o.notes, fmt.Sprintf("host %s of app %s has no HTTPRoute: it requires API keys, which no Gateway checks", p.Host, name))
			continue
		}
		o.addRoute(r, objectName(p.DeploymentId), []string{p.Host}, []*gatewayv1.Target{{DeploymentId: p.DeploymentId, Weight: 1}}, at)
	}
	return o
}

// inexpressibleFields returns the settings of a policy that an HTTPRoute cannot express, by their names
// in an app's file.
func inexpressibleFields(p *gatewayv1.RoutePolicy) []string {
	var out []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"balancing", p.GetBalancing() != gatewayv1.Balancing_BALANCING_UNSPECIFIED},
		{"responseTimeout", p.GetResponseTimeout() != nil},
		{"idleTimeout", p.GetIdleTimeout() != nil},
		{"queueSize", p.GetQueueSize() != 0},
		{"queueWait", p.GetQueueWait() != nil},
		{"retries", p.GetRetries() != 0},
		{"maxInFlight", p.GetMaxInFlight() != 0},
		{"maxBodyBytes", p.GetMaxBodyBytes() != 0},
		{"cors", p.GetCors() != nil},
		{"payloadLog", p.GetPayloadLog() != nil},
		{"crossRegion", p.GetCrossRegion() > gatewayv1.CrossRegion_CROSS_REGION_OFF},
	} {
		if f.set {
			out = append(out, f.name)
		}
	}
	return out
}

// objectName converts an id to a valid name of an object: lower-case letters, digits and dashes.
func objectName(id string) string { return strings.ReplaceAll(strings.ToLower(id), "_", "-") }

func metaOf(r *gatewayv1.AppRoutes, name string, at target) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: at.namespace, Labels: map[string]string{
		labelManagedBy: managedBy, labelRegion: at.region, labelApp: r.AppId,
	}}
}

// addService adds the Service and the EndpointSlices of a deployment.
func (o objects) addService(r *gatewayv1.AppRoutes, t *gatewayv1.Target, at target) {
	name := objectName(t.DeploymentId)
	protocol := "http"
	o.services[name] = &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metaOf(r, name, at),
		Spec: corev1.ServiceSpec{
			Type:  corev1.ServiceTypeClusterIP,
			Ports: []corev1.ServicePort{{Name: portName, Port: servicePort, Protocol: corev1.ProtocolTCP, AppProtocol: &protocol}},
		},
	}
	type group struct {
		family discoveryv1.AddressType
		port   uint16
	}
	groups := map[group][]discoveryv1.Endpoint{}
	for _, in := range slices.SortedFunc(slices.Values(t.Instances), func(a, b *gatewayv1.Instance) int { return cmp.Compare(a.InstanceId, b.InstanceId) }) {
		address, err := netip.ParseAddrPort(in.Address)
		if err != nil {
			continue // instances in a cluster have IP addresses
		}
		g := group{discoveryv1.AddressTypeIPv4, address.Port()}
		if address.Addr().Unmap().Is6() {
			g.family = discoveryv1.AddressTypeIPv6
		}
		ready, draining := in.State == gatewayv1.Instance_STATE_READY, in.State == gatewayv1.Instance_STATE_DRAINING
		// A draining instance finishes its requests. If it were "serving", it would get new
		// requests when no instance is ready.
		serving := ready
		groups[g] = append(groups[g], discoveryv1.Endpoint{
			Addresses:  []string{address.Addr().Unmap().String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &draining},
		})
	}
	for g, all := range groups {
		for i, part := range slices.Collect(slices.Chunk(all, maxEndpoints)) {
			slice := fmt.Sprintf("%s-%s-%d-%d", name, strings.ToLower(string(g.family)), g.port, i)
			m := metaOf(r, slice, at)
			m.Labels[discoveryv1.LabelServiceName], m.Labels[discoveryv1.LabelManagedBy] = name, managedBy
			number, protocol, tcp, named := int32(g.port), "http", corev1.ProtocolTCP, portName
			o.slices[slice] = &discoveryv1.EndpointSlice{
				TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: m,
				AddressType: g.family, Endpoints: part,
				Ports: []discoveryv1.EndpointPort{{Name: &named, Port: &number, Protocol: &tcp, AppProtocol: &protocol}},
			}
		}
	}
}

// addRoute adds the HTTPRoute from hosts to deployments by weight. Without deployments, it leads to a
// Service without endpoints, for which data planes answer 503. For a route without backends, they
// would answer 500.
func (o objects) addRoute(r *gatewayv1.AppRoutes, name string, hosts []string, shares []*gatewayv1.Target, at target) {
	group, kind, namespace := gwv1.Group(gwv1.GroupName), gwv1.Kind("Gateway"), gwv1.Namespace(at.parent.Namespace)
	parent := gwv1.ParentReference{Group: &group, Kind: &kind, Namespace: &namespace, Name: gwv1.ObjectName(at.parent.Name)}
	if at.parent.Section != "" {
		section := gwv1.SectionName(at.parent.Section)
		parent.SectionName = &section
	}
	total := durationText(r.Policy.GetRequestTimeout().AsDuration())
	rule := gwv1.HTTPRouteRule{Timeouts: &gwv1.HTTPRouteTimeouts{Request: &total}}
	if len(shares) == 0 {
		nowhere := &gatewayv1.Target{DeploymentId: r.AppId + "-nowhere", Weight: 1}
		o.addService(r, nowhere, at)
		shares = []*gatewayv1.Target{nowhere}
	}
	for _, t := range shares {
		core, service, port, weight := gwv1.Group(""), gwv1.Kind("Service"), gwv1.PortNumber(servicePort), t.Weight
		rule.BackendRefs = append(rule.BackendRefs, gwv1.HTTPBackendRef{BackendRef: gwv1.BackendRef{
			BackendObjectReference: gwv1.BackendObjectReference{Group: &core, Kind: &service, Name: gwv1.ObjectName(objectName(t.DeploymentId)), Port: &port},
			Weight:                 &weight,
		}})
	}
	out := &gwv1.HTTPRoute{
		TypeMeta: metav1.TypeMeta{APIVersion: gwv1.GroupVersion.String(), Kind: "HTTPRoute"}, ObjectMeta: metaOf(r, name, at),
		Spec: gwv1.HTTPRouteSpec{
			CommonRouteSpec: gwv1.CommonRouteSpec{ParentRefs: []gwv1.ParentReference{parent}},
			Rules:           append(closedRules(r.ClosedPaths), rule),
		},
	}
	for _, h := range hosts {
		out.Spec.Hostnames = append(out.Spec.Hostnames, gwv1.Hostname(h))
	}
	o.routes[name] = out
}

// closedRules returns rules that lead nowhere, so the data plane answers requests for these paths
// with an error. They take precedence over the rule for all paths, because their paths are longer.
func closedRules(paths []string) (rules []gwv1.HTTPRouteRule) {
	for _, closed := range paths {
		kind, values := gwv1.PathMatchPathPrefix, []string{closed}
		if calls := grpcCalls[closed]; len(calls) > 0 {
			kind, values = gwv1.PathMatchExact, calls
		}
		for _, value := range values {
			rules = append(rules, gwv1.HTTPRouteRule{Matches: []gwv1.HTTPRouteMatch{{Path: &gwv1.HTTPPathMatch{Type: &kind, Value: &value}}}})
		}
	}
	return rules
}

// grpcCalls has the calls that begin with a closed path of gRPC. A prefix of the Gateway API does not match them: it
// compares whole elements of the path, and capitals with capitals.
var grpcCalls = map[string][]string{
	"/inference.grpcinferenceservice/repository": {
		"/inference.GRPCInferenceService/RepositoryIndex",
		"/inference.GRPCInferenceService/RepositoryModelLoad",
		"/inference.GRPCInferenceService/RepositoryModelUnload",
	},
}

// durationText returns a time in the API's format, which has at most four units. 0 means no timeout. The
// timeout is always set, because a data plane's default may be too short for streams.
func durationText(d time.Duration) gwv1.Duration {
	if d <= 0 {
		return "0s"
	}
	var b strings.Builder
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / unit.size; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, unit.name)
			d %= unit.size
		}
	}
	return gwv1.Duration(cmp.Or(b.String(), "1ms"))
}
