package model

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// EncodeRouting is how a Route has the policy of a version; nil: it has none.
func EncodeRouting(p *windlassv1.RoutingPolicy) []byte {
	// It fails for texts that are no UTF-8 only, which no request gets in with.
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil || len(b) == 0 {
		return nil
	}
	return b
}

// Routing is the policy that the region is told, nil for none.
func (r Route) Routing() (*windlassv1.RoutingPolicy, error) {
	if len(r.Policy) == 0 {
		return nil, nil //nolint:nilnil // a route without a policy is no error
	}
	p := &windlassv1.RoutingPolicy{}
	if err := proto.Unmarshal(r.Policy, p); err != nil {
		return nil, fmt.Errorf("decode the policy of the route of %s in %s: %w", r.AppID, r.RegionID, err)
	}
	return p, nil
}

// Routes reports whether the route's policy is p. An encoding of another release, which may
// differ in its bytes, is the same policy.
func (r Route) Routes(p *windlassv1.RoutingPolicy) bool {
	was, err := r.Routing()
	if err != nil {
		return false
	}
	if was == nil || proto.Size(p) == 0 {
		return was == nil && proto.Size(p) == 0
	}
	return proto.Equal(was, p)
}

// CrossRegion is when the policy has requests handed to other regions. Those of an app at zero are
// handed to others, too, where its cold start says so.
func (r Route) CrossRegion() windlassv1.RoutingPolicy_CrossRegion {
	p, err := r.Routing()
	if err != nil {
		return windlassv1.RoutingPolicy_CROSS_REGION_UNSPECIFIED // code that reads the policy reports the error
	}
	if p.GetColdStart().GetElsewhere() {
		return max(p.GetCrossRegion(), windlassv1.RoutingPolicy_CROSS_REGION_FAILOVER)
	}
	return p.GetCrossRegion()
}

// AppRegion is a region that routes the hosts of an app whose requests may go to other regions.
type AppRegion struct {
	AppID, RegionID string
	WorkspaceID     string
	AppName         string
	// Hosts that the region is told of.
	Hosts []string
	// RegionName and GatewayURL are the region's.
	RegionName, GatewayURL string
	// Platform: it is the platform's. GatewayApproved is the region's.
	Platform, GatewayApproved bool
	// Ready: some instance of it is, as the region told last.
	Ready bool
	// AtZero: no replicas of it are wanted.
	AtZero bool
}

// WorkspaceRegion is a region that a workspace may use, its own or a granted one.
type WorkspaceRegion struct {
	WorkspaceID, RegionID, RegionName string
	Platform                          bool
}
