package gateways

import (
	"errors"
	"fmt"
	"io/fs"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/pkg/neighbours"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
)

// Around sends the neighbours of this region to the gateways. It also stores them for the next
// agent process, which uses them until the control plane sends new ones. So a gateway that starts
// without a file receives the neighbours with the routes, even while the control plane is not
// connected.
func (g *Gateways) Around(n *gatewayv1.Neighbours) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.around = g.around.With(n)
	signalOn(g.wake)
	for _, one := range g.hub.gateways {
		if one.poke != nil {
			signalOn(one.poke)
		}
	}
}

// neighbourFrames returns the present neighbours, and the frames that update a gateway from the
// neighbours in told.
func (g *Gateways) neighbourFrames(told *neighbours.Picture) (*neighbours.Picture, []*gatewayv1.WatchResponse) {
	g.mu.Lock()
	now := g.around
	g.mu.Unlock()
	var out []*gatewayv1.WatchResponse
	for _, n := range now.Since(told) {
		out = append(out, &gatewayv1.WatchResponse{Frame: &gatewayv1.WatchResponse_Neighbours{Neighbours: n}})
	}
	return now, out
}

// recallAround reads the neighbours that the previous agent process received.
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

// keepAround writes the file if its content is out of date. Only Run calls it.
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
