package gateways

import (
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/load"
	"github.com/windlass-run/windlass/apps/agent/internal/traffic"
	"github.com/windlass-run/windlass/pkg/histogram"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// countsOf converts the request counts of a report, by deployment.
func countsOf(told []*gatewayv1.Traffic) map[string]traffic.Counts {
	out := make(map[string]traffic.Counts, len(told))
	for _, t := range told {
		out[t.DeploymentId] = traffic.Counts{
			Requests: t.Requests, Errors: t.Errors,
			Latency: histogram.Unpack(t.Latency), FirstToken: histogram.Unpack(t.FirstToken),
		}
	}
	return out
}

// Traffic returns the gateways' request counts of the deployments up to now.
func (g *Gateways) Traffic(req *agentv1.TrafficRequest) *agentv1.TrafficResponse {
	out := &agentv1.TrafficResponse{Gateways: int32(g.connectedCount())}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, q := range req.Queries {
		seen := g.traffic.Look(q.DeploymentId, q.Window.AsDuration(), time.Now())
		out.Traffic = append(out.Traffic, &agentv1.Traffic{
			Requests: seen.Requests, Errors: seen.Errors, LatencyP95: p95(&seen.Latency),
			Streams: seen.FirstToken.Total(), FirstTokenP95: p95(&seen.FirstToken),
		})
	}
	return out
}

// countFromNow records that a gateway's process has just begun, so that all its request counts are
// new. forgetCounts forgets a process that has ended. The caller holds mu.
func (g *Gateways) countFromNow(id string) {
	g.traffic.Joined(id)
	g.demand.Joined(id)
}

func (g *Gateways) forgetCounts(id string) {
	g.traffic.Left(id)
	g.demand.Left(id)
}

// scaledLoads returns the loads of those apps that are scaled in this region. The caller holds mu.
func (g *Gateways) scaledLoads(loads []*gatewayv1.AppLoad) []*gatewayv1.AppLoad {
	return slices.DeleteFunc(loads, func(l *gatewayv1.AppLoad) bool { return !g.hub.apps[l.AppId].isCounted() })
}

// Demand returns the demand of clients for an app. ok is false while no gateway has reported it.
func (g *Gateways) Demand(appID string, now time.Time) (_ load.Asked, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.demand.Look(appID, now)
}

// AreConnected reports whether any gateway is connected.
func (g *Gateways) AreConnected() bool { return g.connectedCount() > 0 }

// Times returns how long answers of a deployment took within the window.
func (g *Gateways) Times(deploymentID string, window time.Duration, now time.Time) (latency, firstToken histogram.Counts) {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := g.traffic.Look(deploymentID, window, now)
	return seen.Latency, seen.FirstToken
}

// p95 returns the 95th percentile in seconds, or nil if there were no requests.
func p95(c *histogram.Counts) *float64 {
	d, ok := c.Quantile(0.95)
	if !ok {
		return nil
	}
	return new(d.Seconds())
}
