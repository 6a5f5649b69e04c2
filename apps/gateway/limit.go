package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/pkg/conns"
)

// limitConnections makes the table of clients' connections, and its metrics. Trusted proxies have those of
// many clients.
func (g *Gateway) limitConnections() error {
	limits := g.cfg.Connections.Defaults()
	limits.Exempt = func(address netip.Addr) bool {
		return g.trusts(net.JoinHostPort(address.String(), "0"))
	}
	g.conns = conns.New(limits)
	figure := func(of int) func() float64 {
		return func() float64 {
			open, refused, shed := g.conns.Figures()
			return float64([...]int64{open, refused, shed}[of])
		}
	}
	err := errors.Join(
		g.cfg.Registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "windlass_gateway_connections", Help: "Connections of clients.",
		}, figure(0))),
		g.cfg.Registerer.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "windlass_gateway_connections_refused_total", Help: "Connections of clients that were closed at once: all that there may be had requests.",
		}, figure(1))),
		g.cfg.Registerer.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "windlass_gateway_connections_shed_total", Help: "Connections of clients without a request that were closed to make room for others.",
		}, figure(2))),
	)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	return nil
}
