package gateways

import (
	"errors"
	"fmt"
	"io/fs"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/neighbours"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// Around has gateways told of the regions around this one, also by the agents after this one, until
// the control plane tells it anew: a gateway that starts without a file is to know as much as it
// does of routes.
func (g *Gateways) Around(n *gatewayv1.Neighbours) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.around = g.around.With(n)
	signal(g.wake)
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

// recallAround reads what an agent before this one was told.
func (g *Gateways) recallAround() error {
	data, err := g.cfg.Files.Read(g.cfg.Around)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	n := &gatewayv1.Neighbours{}
	if err == nil {
		err = proto.Unmarshal(data, n)
	}
	if err != nil {
		return fmt.Errorf("read neighbours %s: %w", g.cfg.Around, err)
	}
	g.around = g.around.With(n)
	g.aroundKept = g.around
	return nil
}

// keepAround writes the file when something else is around than it has. It is Run's.
func (g *Gateways) keepAround() error {
	g.mu.Lock()
	now := g.around
	g.mu.Unlock()
	if now == g.aroundKept {
		return nil
	}
	data, err := proto.Marshal(now.Whole())
	if err != nil {
		return err
	}
	if err := g.cfg.Files.Replace(g.cfg.Around, data); err != nil {
		return err
	}
	g.aroundKept = now
	return nil
}
