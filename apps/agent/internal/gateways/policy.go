package gateways

import (
	"cmp"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/healthcheck"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// balancing maps the user API's values to values for gateways. A value that only a later release
// knows becomes the gateway's default.
var balancing = map[windlassv1.RoutingPolicy_Balancing]gatewayv1.Balancing{
	windlassv1.RoutingPolicy_BALANCING_ROUND_ROBIN:    gatewayv1.Balancing_BALANCING_ROUND_ROBIN,
	windlassv1.RoutingPolicy_BALANCING_LEAST_REQUESTS: gatewayv1.Balancing_BALANCING_LEAST_REQUESTS,
	windlassv1.RoutingPolicy_BALANCING_POWER_OF_TWO:   gatewayv1.Balancing_BALANCING_POWER_OF_TWO,
	windlassv1.RoutingPolicy_BALANCING_AFFINITY:       gatewayv1.Balancing_BALANCING_AFFINITY,
	windlassv1.RoutingPolicy_BALANCING_WEIGHTED:       gatewayv1.Balancing_BALANCING_WEIGHTED,
}

// crossRegion maps the user API's values to values for gateways. A value that only a later release
// knows becomes off.
var crossRegion = map[windlassv1.RoutingPolicy_CrossRegion]gatewayv1.CrossRegion{
	windlassv1.RoutingPolicy_CROSS_REGION_OFF:       gatewayv1.CrossRegion_CROSS_REGION_OFF,
	windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER:  gatewayv1.CrossRegion_CROSS_REGION_FAILOVER,
	windlassv1.RoutingPolicy_CROSS_REGION_SPILLOVER: gatewayv1.CrossRegion_CROSS_REGION_SPILLOVER,
}

// closedPaths are the paths of calls that load, unload and list models. Clients must not use them.
// A server of models answers them for every caller, and clients reach it through its app's hosts
// and the hosts of its models.
var closedPaths = []string{"/v2/repository", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter", "/inference.grpcinferenceservice/repository"}

// policyOf converts a route's policy to the gateways' message.
func policyOf(p *windlassv1.RoutingPolicy) *gatewayv1.RoutePolicy {
	if p == nil {
		return nil
	}
	out := &gatewayv1.RoutePolicy{
		Balancing:       balancing[p.Balancing],
		ResponseTimeout: p.ResponseTimeout, IdleTimeout: p.IdleTimeout, RequestTimeout: p.RequestTimeout,
		QueueSize: p.QueueSize, QueueWait: p.QueueWait, Retries: p.Retries, MaxInFlight: p.MaxInFlight, MaxBodyBytes: p.MaxBodyBytes,
		CrossRegion: crossRegion[p.CrossRegion], RequireApiKey: p.RequireApiKey,
	}
	switch a := p.Affinity; {
	case a.GetHeader() != "":
		out.Affinity = &gatewayv1.RoutePolicy_AffinityHeader{AffinityHeader: a.GetHeader()}
	case a.GetCookie() != "":
		out.Affinity = &gatewayv1.RoutePolicy_AffinityCookie{AffinityCookie: a.GetCookie()}
	}
	if c := p.Cors; c != nil {
		out.Cors = &gatewayv1.Cors{
			AllowedOrigins: c.AllowedOrigins, AllowedMethods: c.AllowedMethods, AllowedHeaders: c.AllowedHeaders,
			ExposedHeaders: c.ExposedHeaders, Credentials: c.Credentials, MaxAge: c.MaxAge,
		}
	}
	if c := p.ColdStart; c != nil {
		out.ColdStart = &gatewayv1.ColdStart{Hold: c.Hold, MaxHeld: c.MaxHeld, Heartbeat: c.Heartbeat, Elsewhere: c.Elsewhere}
	}
	if l := p.PayloadLog; l != nil {
		out.PayloadLog = &gatewayv1.PayloadLog{Sample: l.Sample, MaxBytes: l.MaxBytes, Redact: l.Redact}
	}
	return out
}

// checkOf returns the health check of a deployment for gateways, with its defaults. It returns nil
// if the check is not known, or if it uses another port than requests do.
func checkOf(spec *windlassv1.DeploymentSpec) *gatewayv1.HealthCheck {
	h := spec.GetHealthCheck()
	if spec == nil || h.GetPort() != "" && (len(spec.Ports) == 0 || h.GetPort() != spec.Ports[0].Name) {
		return nil
	}
	out := &gatewayv1.HealthCheck{
		Path: cmp.Or(h.GetPath(), healthcheck.DefaultPath), Method: cmp.Or(h.GetMethod(), healthcheck.DefaultMethod),
		ExpectedCodes: h.GetExpectedCodes(), Timeout: durationpb.New(healthcheck.DefaultTimeout),
	}
	if h.GetTimeout().AsDuration() > 0 {
		out.Timeout = h.Timeout
	}
	return out
}

// apiKeysOf converts app keys to the gateways' message.
func apiKeysOf(keys []*agentv1.AppKey) []*gatewayv1.ApiKey {
	out := make([]*gatewayv1.ApiKey, 0, len(keys))
	for _, k := range keys {
		out = append(out, &gatewayv1.ApiKey{Name: k.Name, Hash: k.Hash, ExpiresAt: k.ExpiresAt})
	}
	return out
}
