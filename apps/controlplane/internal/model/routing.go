package model

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// EncodeRouting returns the policy of a version as Route.Policy holds it, nil for none.
func EncodeRouting(p *windlassv1.RoutingPolicy) []byte {
	// It fails only for strings that are not UTF-8, which no request can contain.
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil || len(b) == 0 {
		return nil
	}
	return b
}

// Routing returns the policy that the region is sent, nil for none.
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

// Routes reports whether the route's policy equals p. The bytes of another release's encoding may differ.
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

// CrossRegion returns when the policy hands requests over to other regions. If its cold start allows it,
// requests for an app at zero are handed over, too.
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
	// Hosts are the hosts that are sent to the region.
	Hosts []string
	// RegionName and GatewayURL are the region's.
	RegionName, GatewayURL string
	// Platform is true for a region of the platform. GatewayApproved is Region.GatewayApproved.
	Platform, GatewayApproved bool
	// Ready is true if the region last reported an instance of it as ready.
	Ready bool
	// AtZero is true if no replicas of it are wanted.
	AtZero bool
}

// WorkspaceRegion is a region that a workspace may use, its own or a granted one.
type WorkspaceRegion struct {
	WorkspaceID, RegionID, RegionName string
	Platform                          bool
}
