package agent

import (
	"context"
	"fmt"
	"net"

	"github.com/windlass-run/windlass/apps/agent/internal/gateways"
	"github.com/windlass-run/windlass/apps/agent/internal/xds"
)

// xdsClients is the name of the gateway that stands for all xDS clients together.
const xdsClients = "xds"

// openXDS starts to follow the table, if routes are served over xDS.
func (a *Agent) openXDS(tableID string) (err error) {
	if a.cfg.XDSListen == "" {
		return nil
	}
	a.xds, err = xds.New(xds.Config{
		Feed: a.gateways.Follow(xdsClients, !a.cfg.Listeners.Insecure), Region: a.region, TableID: tableID, Grace: gateways.Grace,
		Log: a.cfg.Log, Registerer: a.cfg.Registerer,
	})
	return err
}

// serveXDS serves the region's routes to Envoys and gRPC clients until ctx ends.
func (a *Agent) serveXDS(ctx context.Context) error {
	if a.xds == nil {
		<-ctx.Done()
		return nil
	}
	config, err := a.listenerTLS(ctx)
	if err != nil {
		return nil //nolint:nilerr // ctx ended
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.XDSListen)
	if err != nil {
		return fmt.Errorf("--xds-listen=%q: use host:port with a port that is free: %w", a.cfg.XDSListen, err)
	}
	a.cfg.Log.InfoContext(ctx, "serving routes over xDS", "address", l.Addr().String(), "tls", config != nil)
	return a.xds.Run(ctx, a.conns.xds.ListenBusy("xds", l), config)
}

// gatewayAPI is the name of the gateway that stands for all data planes of the Gateway API
// together.
const gatewayAPI = "gateway-api"

// RouteWriter writes routes until ctx ends.
type RouteWriter interface {
	Run(ctx context.Context) error
}

func (a *Agent) writeRoutes(ctx context.Context) error {
	if a.written == nil {
		<-ctx.Done()
		return nil
	}
	return a.written.Run(ctx)
}
