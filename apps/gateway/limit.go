package gateway

import (
	"net"
	"net/netip"

	"github.com/windlass-run/windlass/pkg/conns"
)

// limitConnections makes the table of clients' connections, and registers its metrics. Trusted proxies are
// exempt from the limits, because each of them connects for many clients.
func (g *Gateway) limitConnections() error {
	limits := g.cfg.Connections.Defaults()
	limits.Exempt = func(address netip.Addr) bool {
		return g.isTrusted(net.JoinHostPort(address.String(), "0"))
	}
	g.conns = conns.New(limits)
	return registerConnections(g.cfg.Registerer, g.conns)
}
