package gateways

import (
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/traffic"
	"github.com/windlass-run/windlass/pkg/histogram"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

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

// Traffic returns the gateways' request counts of the deployments, as of now.
func (g *Gateways) Traffic(req *agentv1.TrafficRequest) *agentv1.TrafficResponse {
	out := &agentv1.TrafficResponse{Gateways: int32(g.connected())}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, q := range req.Queries {
		seen := g.seen.Look(q.DeploymentId, q.Window.AsDuration(), time.Now())
		out.Traffic = append(out.Traffic, &agentv1.Traffic{
			Requests: seen.Requests, Errors: seen.Errors, LatencyP95: p95(&seen.Latency),
			Streams: seen.FirstToken.Total(), FirstTokenP95: p95(&seen.FirstToken),
		})
	}
	return out
}

// p95 returns the 95th percentile in seconds; nil if there were no requests.
func p95(c *histogram.Counts) *float64 {
	d, ok := c.Quantile(0.95)
	if !ok {
		return nil
	}
	return new(d.Seconds())
}
