package routesync

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/cors"
	"github.com/windlass-run/windlass/apps/gateway/internal/hold"
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
	"github.com/windlass-run/windlass/apps/gateway/internal/payload"
	"github.com/windlass-run/windlass/apps/gateway/internal/table"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
	"github.com/windlass-run/windlass/pkg/healthcheck"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// isRemoval reports whether the app has no routes any more.
func isRemoval(a *gatewayv1.AppRoutes) bool { return len(a.Hosts) == 0 && len(a.Previews) == 0 }

// specOf reads an app's routes. An error names the field that cannot be served.
func specOf(a *gatewayv1.AppRoutes) (upstream.Spec, error) {
	spec := upstream.Spec{
		AppID: a.AppId, AppName: a.AppName, Epoch: a.Epoch, Generation: a.Generation, Change: a.Change,
		Hosts: a.Hosts, CountsLoad: a.CountLoad,
	}
	if spec.AppID == "" {
		return spec, fmt.Errorf("routes without app_id")
	}
	fail := func(format string, args ...any) (upstream.Spec, error) {
		return spec, fmt.Errorf("routes of %s: %s", spec.AppID, fmt.Sprintf(format, args...))
	}
	for _, host := range a.Hosts {
		if host == "" || table.Host(host) != host {
			return fail("host %q must be in lower case, without port and trailing dot", host)
		}
	}
	for _, closed := range a.ClosedPaths {
		if !strings.HasPrefix(closed, "/") || strings.ToLower(closed) != closed {
			return fail("closed path %q must begin with / and be in lower case", closed)
		}
	}
	spec.ClosedPaths = a.ClosedPaths
	targets := map[string]bool{}
	for _, t := range a.Targets {
		if targets[t.DeploymentId] {
			return fail("deployment %s is a target twice", t.DeploymentId)
		}
		targets[t.DeploymentId] = true
		if t.Weight < 0 {
			return fail("weight %d of %s is negative", t.Weight, t.DeploymentId)
		}
		check := checkOf(t.HealthCheck)
		target := upstream.TargetSpec{DeploymentID: t.DeploymentId, Version: t.Version, Weight: t.Weight, Pairing: pairingOf(t.Pairing)}
		for key, p := range t.KeyPairings {
			if target.KeyPairings == nil {
				target.KeyPairings = map[string]*pairing.Policy{}
			}
			target.KeyPairings[key] = pairingOf(p)
		}
		var err error
		if target.Instances, err = instancesOf(t.Instances, check); err == nil && target.Pairing != nil {
			target.Prefill, err = instancesOf(t.Prefill, check)
		}
		if err != nil {
			return fail("%v", err)
		}
		spec.Targets = append(spec.Targets, target)
	}
	for _, p := range a.Previews {
		if p.Host == "" || table.Host(p.Host) != p.Host {
			return fail("preview %q must be in lower case, without port and trailing dot", p.Host)
		}
		if !targets[p.DeploymentId] {
			return fail("preview %s is of deployment %s, which is not a target", p.Host, p.DeploymentId)
		}
		spec.Previews = append(spec.Previews, upstream.Preview{Host: p.Host, DeploymentID: p.DeploymentId, Keyed: p.RequireApiKey})
	}
	for _, k := range a.ApiKeys {
		if len(k.Hash) != len(upstream.Hash{}) {
			return fail("key %s has a hash of %d bytes, not %d", k.Name, len(k.Hash), len(upstream.Hash{}))
		}
		key := upstream.Key{Name: k.Name}
		if k.ExpiresAt != 0 {
			key.Until = time.UnixMilli(k.ExpiresAt)
		}
		if spec.Keys == nil {
			spec.Keys = map[upstream.Hash]upstream.Key{}
		}
		spec.Keys[upstream.Hash(k.Hash)] = key
	}
	var err error
	if spec.Policy, err = policyOf(a.Policy); err != nil {
		return fail("%v", err)
	}
	if a.Held {
		if spec.Hold, err = holdOf(a.Policy.GetColdStart(), a.StartTime); err != nil {
			return fail("%v", err)
		}
	}
	return spec, nil
}

// instancesOf returns the instances of a target. An error names one that cannot be reached.
func instancesOf(all []*gatewayv1.Instance, check *healthcheck.Check) ([]upstream.InstanceSpec, error) {
	var out []upstream.InstanceSpec
	for _, i := range all {
		host, port, err := net.SplitHostPort(i.Address)
		if n, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil || host == "" || n == 0 {
			return nil, fmt.Errorf("address %q of instance %s is not host:port", i.Address, i.InstanceId)
		}
		if i.BootstrapPort < 0 || i.BootstrapPort > math.MaxUint16 {
			return nil, fmt.Errorf("bootstrap_port %d of instance %s is not a port", i.BootstrapPort, i.InstanceId)
		}
		instance := upstream.InstanceSpec{
			ID: i.InstanceId, Address: i.Address, WasReady: i.WasReady, Check: check, OtherVersion: i.OtherVersion,
			Keys: i.PairingKeys, Alone: i.Alone, BootstrapPort: int(i.BootstrapPort),
		}
		switch i.State {
		case gatewayv1.Instance_STATE_READY:
			instance.State = upstream.Ready
		case gatewayv1.Instance_STATE_DRAINING:
			instance.State = upstream.Draining
		case gatewayv1.Instance_STATE_NOT_READY, gatewayv1.Instance_STATE_UNSPECIFIED:
			instance.State = upstream.NotReady
		default: // a state that only a later release knows counts as not ready
			instance.State = upstream.NotReady
		}
		out = append(out, instance)
	}
	return out, nil
}

// pairingOf returns how the requests of a target go to pairs. Nil: they do not.
func pairingOf(p *gatewayv1.Pairing) *pairing.Policy {
	if p == nil {
		return nil
	}
	out := &pairing.Policy{MinPromptBytes: int(max(p.MinPromptBytes, 0))}
	switch p.Engine {
	case gatewayv1.Pairing_ENGINE_NIXL:
		out.Engine = pairing.NIXL
	case gatewayv1.Pairing_ENGINE_SGLANG:
		out.Engine = pairing.SGLang
	case gatewayv1.Pairing_ENGINE_UNSPECIFIED:
	default: // an engine that only a later release knows: requests for completions are refused
	}
	return out
}

// holdOf returns the policy by which requests wait while the app is at zero, with defaults for absent fields.
func holdOf(c *gatewayv1.ColdStart, start *durationpb.Duration) (*hold.Policy, error) {
	out := hold.Default()
	out.Heartbeat, out.Elsewhere = c.GetHeartbeat(), c.GetElsewhere()
	if c.GetHold() != nil {
		if err := c.Hold.CheckValid(); err != nil || c.Hold.AsDuration() < 0 {
			return nil, fmt.Errorf("policy.cold_start.hold %v is negative or invalid", strings.TrimSpace(c.Hold.String()))
		}
		out.Wait = c.Hold.AsDuration()
	}
	if c != nil && c.MaxHeld != nil {
		out.Most = int(max(*c.MaxHeld, 0))
	}
	out.Start = max(start.AsDuration(), 0)
	return &out, nil
}

// leastCheck is the shortest timeout of a check at the gateway, as in Kubernetes. A shorter timeout was set for the
// agent, which is nearer to the instance than the gateway.
const leastCheck = time.Second

// checkOf returns nil for no check, and for a check that only a later release knows.
func checkOf(h *gatewayv1.HealthCheck) *healthcheck.Check {
	codes, err := healthcheck.ParseCodes(h.GetExpectedCodes())
	if err != nil || !strings.HasPrefix(h.GetPath(), "/") || h.Method == "" {
		return nil
	}
	return &healthcheck.Check{Method: h.Method, Path: h.Path, Codes: codes, Timeout: max(h.Timeout.AsDuration(), leastCheck), Agent: "windlass-gateway"}
}

// specWith returns an app's routes. If the app has no hosts in this region, it adds the hosts that only other
// regions have. The app may still have previews in this region then, of versions that have yet to stop.
func specWith(a *gatewayv1.AppRoutes, other *gatewayv1.AppNeighbours) (upstream.Spec, error) {
	if len(a.Hosts) > 0 || len(other.GetHosts()) == 0 {
		return specOf(a)
	}
	whole := proto.CloneOf(a)
	whole.Hosts, whole.AppName = other.Hosts, cmp.Or(a.AppName, other.AppName)
	for _, t := range whole.Targets {
		t.Weight = 0
	}
	spec, err := specOf(whole)
	for i := range spec.Previews { // this region answers previews, and has their keys
		spec.Previews[i].Keyed = spec.Previews[i].Keyed || spec.Policy.RequireKey
	}
	spec.Policy, spec.Elsewhere = upstream.ElsewherePolicy(), isRemoval(a)
	return spec, err
}

// policyOf returns the policy, with defaults for absent fields.
func policyOf(p *gatewayv1.RoutePolicy) (upstream.Policy, error) {
	out := upstream.DefaultPolicy()
	if p == nil {
		return out, nil
	}
	switch p.Balancing {
	case gatewayv1.Balancing_BALANCING_UNSPECIFIED: // the default
	case gatewayv1.Balancing_BALANCING_ROUND_ROBIN:
		out.Strategy = balance.RoundRobin
	case gatewayv1.Balancing_BALANCING_LEAST_REQUESTS:
		out.Strategy = balance.LeastRequests
	case gatewayv1.Balancing_BALANCING_POWER_OF_TWO:
		out.Strategy = balance.PowerOfTwo
	case gatewayv1.Balancing_BALANCING_AFFINITY:
		out.Strategy = balance.Affinity
	case gatewayv1.Balancing_BALANCING_WEIGHTED:
		out.Strategy = balance.Weighted
	default: // for a strategy that only a later release knows, the default is used
	}
	switch a := p.Affinity.(type) {
	case *gatewayv1.RoutePolicy_AffinityHeader:
		out.AffinityHeader = a.AffinityHeader
	case *gatewayv1.RoutePolicy_AffinityCookie:
		out.AffinityCookie = a.AffinityCookie
	}
	for _, d := range []struct {
		name string
		from *durationpb.Duration
		to   *time.Duration
		zero bool
	}{
		{"response_timeout", p.ResponseTimeout, &out.Response, false},
		{"idle_timeout", p.IdleTimeout, &out.Idle, false},
		{"request_timeout", p.RequestTimeout, &out.Total, true},
		{"queue_wait", p.QueueWait, &out.QueueWait, true},
	} {
		if d.from == nil {
			continue
		}
		value := d.from.AsDuration()
		if err := d.from.CheckValid(); err != nil || value < 0 {
			return out, fmt.Errorf("policy.%s %v is negative or invalid", d.name, strings.TrimSpace(d.from.String()))
		}
		// 0 means the default for limits that always apply.
		if value > 0 || d.zero {
			*d.to = value
		}
	}
	if p.QueueSize != nil {
		out.QueueSize = int(max(*p.QueueSize, 0))
	}
	if p.Retries != nil {
		out.Retries = int(max(*p.Retries, 0))
	}
	if p.MaxInFlight != nil {
		out.MaxInFlight = int64(max(*p.MaxInFlight, 0))
	}
	if p.MaxBodyBytes != nil && *p.MaxBodyBytes > 0 {
		out.MaxBody = *p.MaxBodyBytes
	}
	out.RequireKey = p.RequireApiKey
	switch p.CrossRegion {
	case gatewayv1.CrossRegion_CROSS_REGION_FAILOVER:
		out.Cross = upstream.Failover
	case gatewayv1.CrossRegion_CROSS_REGION_SPILLOVER:
		out.Cross = upstream.Spillover
	case gatewayv1.CrossRegion_CROSS_REGION_UNSPECIFIED, gatewayv1.CrossRegion_CROSS_REGION_OFF:
	default: // for a mode that only a later release knows, requests are not handed over
	}
	if l := p.PayloadLog; l != nil {
		if !(l.Sample > 0 && l.Sample <= 1) || l.MaxBytes < 0 {
			return out, fmt.Errorf("policy.payload_log %v: sample must be in (0, 1], and max_bytes must be 0 or positive", l)
		}
		out.Payload = &payload.Policy{Sample: l.Sample, MaxBytes: cmp.Or(int(l.MaxBytes), payload.DefaultMaxBytes), Redact: map[string]bool{}}
		for _, name := range l.Redact {
			out.Payload.Redact[name] = true
		}
	}
	var err error
	if p.Cors != nil {
		out.CORS, err = corsOf(p.Cors)
	}
	return out, err
}

func corsOf(c *gatewayv1.Cors) (*cors.Policy, error) {
	cfg := cors.Config{
		Origins: c.AllowedOrigins, Methods: c.AllowedMethods, Headers: c.AllowedHeaders, Exposed: c.ExposedHeaders,
		Credentials: c.Credentials,
	}
	if c.MaxAge != nil {
		if err := c.MaxAge.CheckValid(); err != nil || c.MaxAge.AsDuration() < 0 {
			return nil, fmt.Errorf("policy.cors.max_age %v is negative or invalid", strings.TrimSpace(c.MaxAge.String()))
		}
		cfg.MaxAge = new(c.MaxAge.AsDuration())
	}
	out, err := cors.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("policy.%w", err)
	}
	return out, nil
}
