package controlplane

import (
	"fmt"

	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/guard"
)

// connFlags limit the connections to the listeners for the API and for peers, taken together.
type connFlags struct {
	MaxConnections int `help:"Maximum number of connections of clients, agents and peers. When it is reached, the longest idle connection is closed. 0: half of the process' limit of file descriptors, at most 32768. -1: no limit." default:"0" env:"WINDLASS_MAX_CONNECTIONS"`
	MaxPerAddress  int `name:"max-connections-per-address" help:"Maximum number of connections from one address, or from one /64 of IPv6. Does not apply to --trusted-proxies. 0: a quarter of --max-connections. -1: no limit." default:"0" env:"WINDLASS_MAX_CONNECTIONS_PER_ADDRESS"`
	MaxRestate     int `name:"max-restate-connections" help:"Maximum number of connections to --restate-listen. It is a separate limit, so that clients of the API cannot take Restate's connections. Half of it may come from one address. -1: no limit." default:"1024" env:"WINDLASS_MAX_RESTATE_CONNECTIONS"`
}

// Validate implements kong's check.
func (f connFlags) Validate() error {
	if f.MaxRestate == 0 || f.MaxRestate < -1 {
		return fmt.Errorf("--max-restate-connections=%d: use at least 1, or -1 for no limit", f.MaxRestate)
	}
	return nil
}

// restateLimits returns the limits of the connections to --restate-listen. Each of Restate's nodes calls from its own
// address, so a node that floods the listener leaves room for the other nodes.
func (f connFlags) restateLimits() conns.Limits {
	limits := conns.Limits{Total: f.MaxRestate}
	if f.MaxRestate > 0 {
		limits.PerAddress = max(f.MaxRestate/2, 1)
	}
	return limits
}

// connLimits returns the limits of connections. Trusted proxies are exempt from the limit per address.
func (f connFlags) connLimits(proxies guard.Networks) conns.Limits {
	limits := conns.Limits{Total: f.MaxConnections, PerAddress: f.MaxPerAddress}.Defaults()
	limits.Exempt = proxies.Lists
	return limits
}
