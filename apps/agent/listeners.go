package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/agent/internal/access"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/conns"
)

// connFlags limit the connections to --gateway-listen and --xds-listen.
type connFlags struct {
	Max           int `name:"max-connections" help:"Maximum number of connections to --gateway-listen, and the same for --xds-listen. When it is reached, the longest idle connection to --gateway-listen is closed, and new ones to --xds-listen are refused. 0: half of the process' limit of file descriptors, at most 32768. -1: no limit." default:"0" env:"WINDLASS_MAX_CONNECTIONS"`
	MaxPerAddress int `name:"max-connections-per-address" help:"Maximum number of connections from one address, or from one /64 of IPv6. 0: a quarter of --max-connections. -1: no limit." default:"0" env:"WINDLASS_MAX_CONNECTIONS_PER_ADDRESS"`
}

// connTables limit the connections to the agent's listeners. Each listener has its own table, so
// that clients of one listener cannot use up the connections of the other.
type connTables struct{ gateways, xds *conns.Table }

func newConnTables(limits conns.Limits, registry prometheus.Registerer) (connTables, error) {
	limits = limits.Defaults()
	t := connTables{gateways: conns.New(limits), xds: conns.New(limits)}
	if err := registry.Register(conns.NewCollector(t.gateways, t.xds)); err != nil {
		return t, fmt.Errorf("metrics of connections: %w", err)
	}
	return t, nil
}

// openListeners returns the sources of the TLS settings of --gateway-listen and --xds-listen.
func openListeners(f certfile.ServerFlags, files *certfile.Files) (Listeners, error) {
	own := f.Cert != "" || f.Key != "" || f.ClientCA != ""
	switch {
	case f.Insecure && own:
		return Listeners{}, errors.New("--listen-insecure: leave --listen-tls-cert, --listen-tls-key and --listen-client-ca out, or this flag")
	case f.Insecure:
		return Listeners{Insecure: true}, nil
	case !own:
		return Listeners{}, nil
	case f.Cert == "" || f.Key == "" || f.ClientCA == "":
		return Listeners{}, errors.New("--listen-tls-cert, --listen-tls-key and --listen-client-ca: give all three, or none for the agent's own CA")
	}
	config, err := f.Config(certfile.Listener{Prefix: "listen-"}, files)
	return Listeners{TLS: config}, err
}

// Listeners says how gateways and xDS clients of other hosts prove their identity. The zero value uses the
// agent's own CA, which is in the data directory.
type Listeners struct {
	// TLS has the operator's own certificates, and asks clients for theirs.
	TLS *tls.Config
	// Access keeps the agent's own CA. Nil: the data directory keeps it.
	Access access.Store
	// Insecure means that clients do not prove their identity.
	Insecure bool
}

// accessFolder is the folder for the agent's CA in the data directory.
const accessFolder = "gateway-access"

// secure keeps the TLS settings of the agent's own CA, which are made once.
type secure struct {
	once sync.Once
	tls  *tls.Config
}

// listenerTLS returns the TLS settings of the listeners, or nil for none. It waits until the
// agent's CA can be read and stored. It returns an error only if ctx ended.
func (a *Agent) listenerTLS(ctx context.Context) (*tls.Config, error) {
	how := a.cfg.Listeners
	if how.Insecure || how.TLS != nil {
		return how.TLS, nil
	}
	a.secure.once.Do(func() { a.secure.tls = a.openAccess(ctx, how.Access) })
	return a.secure.tls, ctx.Err()
}

func (a *Agent) openAccess(ctx context.Context, store access.Store) *tls.Config {
	where := "the Secret of --gateway-secret"
	if store == nil {
		where = filepath.Join(a.cfg.DataDir, accessFolder)
		store = access.Folder(where)
	}
	for attempt := 0; ; attempt++ {
		ca, err := access.Open(ctx, store, time.Now())
		if err == nil {
			a.cfg.Log.InfoContext(ctx, "gateways of other hosts need ca.crt, tls.crt and tls.key", "in", where)
			return access.Config(ca)
		}
		wait := retryMembership.Delay(attempt, a.cfg.Rand)
		a.cfg.Log.WarnContext(ctx, "cannot serve routes to other hosts yet; will try again", "error", err, "retry_in", wait)
		if backoff.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}
