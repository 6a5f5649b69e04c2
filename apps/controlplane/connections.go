package controlplane

import (
	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/guard"
)

// connFlags limit the connections to the listeners for the API and for peers, taken together.
type connFlags struct {
	MaxConnections int `help:"Most connections of clients, agents and peers. Beyond, the one that has been without a request for longest is closed. 0: half of the descriptors that the process may have, at most 32768. -1: any." default:"0" env:"WINDLASS_MAX_CONNECTIONS"`
	MaxPerAddress  int `name:"max-connections-per-address" help:"Most connections of one address, or of one /64 of IPv6; --trusted-proxies may have more. 0: a quarter of --max-connections. -1: any." default:"0" env:"WINDLASS_MAX_CONNECTIONS_PER_ADDRESS"`
}

// limits of connections. Proxies have those of many clients.
func (f connFlags) limits(proxies guard.Networks) conns.Limits {
	limits := conns.Limits{Total: f.MaxConnections, PerAddress: f.MaxPerAddress}.Defaults()
	limits.Exempt = proxies.Lists
	return limits
}
