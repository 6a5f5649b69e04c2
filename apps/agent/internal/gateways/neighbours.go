package gateways

import (
	"github.com/windlass-run/windlass/pkg/neighbours"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// Around has gateways told of the regions around this one. It is not kept: after a restart of
// the agent, the gateways have what they had until the control plane tells it anew.
func (g *Gateways) Around(n *gatewayv1.Neighbours) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.around = g.around.With(n)
	for _, one := range g.hub.gateways {
		if one.poke != nil {
			signal(one.poke)
		}
	}
}

// neighbours is what a gateway that was told of a picture does not have of the present one.
func (g *Gateways) neighbours(told *neighbours.Picture) (*neighbours.Picture, []*gatewayv1.WatchResponse) {
	g.mu.Lock()
	now := g.around
	g.mu.Unlock()
	var out []*gatewayv1.WatchResponse
	for _, n := range now.Since(told) {
		out = append(out, &gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Neighbours{Neighbours: n}})
	}
	return now, out
}
