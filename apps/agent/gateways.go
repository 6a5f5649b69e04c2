package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/apps/agent/internal/gateways"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/reconcile"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// gatewayDrain is how long calls of gateways may take when the agent stops. It is short because
// calls take little time and streams end at once.
const gatewayDrain = time.Second

// drain makes the runtime and the reconciler wait for the gateways before they stop instances. It also
// connects the gateways to the apps that requests start, and to the models that requests load.
func (a *Agent) drain() {
	again := func() {}
	if d, ok := a.runtime.(runtime.Drainer); ok {
		again = d.Drain(a.gateways.Released, func(string) time.Duration { return gateways.Patience })
	}
	if r, ok := a.runtime.(runtime.RequestLoader); ok {
		r.FollowRequests(a.gateways.HoldsRequests, a.gateways.IsBusy)
		a.gateways.OnRequests(r.Requested, r.Used)
	}
	a.gateways.OnProgress(func() {
		a.reconciler.Proceed()
		a.reconciler.Announce()
		again()
	})
	a.gateways.OnWake(func(deploymentIDs []string) {
		for _, id := range deploymentIDs {
			a.reconciler.Enqueue(inbox.Key{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Name: id})
		}
	})
}

// tellChanged tells gateways, the reconciler and the load collector which keys a frame changed.
func (a *Agent) tellChanged(keys ...inbox.Key) {
	a.gateways.Received(keys...)
	a.reconciler.Enqueue(keys...)
	for _, k := range keys {
		if item, ok := a.inbox.Get(k); ok && item.GetDeployment().GetDeployment().GetScaling() != nil {
			a.loads.Assigned()
			return
		}
	}
}

// annotated is the reconciler's observation with notes about gateways. It does not count instances
// as ready that gateways cannot connect to.
type annotated struct {
	*reconcile.Reconciler
	gateways *gateways.Gateways
}

// Observation implements report.Source.
func (s annotated) Observation() (runtime.Observation, bool) {
	seen, ok := s.Reconciler.Observation()
	if ok {
		seen.Capacity = s.gateways.Annotate(seen.Capacity)
		seen.Deployments = s.gateways.Countable(seen.Deployments)
	}
	return seen, ok
}

// serveGateways serves the region's routes to its gateways until ctx ends. Only the agent's user
// may use the socket. At GatewayListen, a gateway needs a certificate.
func (a *Agent) serveGateways(ctx context.Context) error {
	if a.cfg.Memory != nil {
		<-ctx.Done() // without a disk, there is no socket and no gateway
		return nil
	}
	socket, err := a.listenOnSocket(ctx)
	if err != nil {
		return err
	}
	limits := gateways.Limits(a.cfg.Registerer)
	serve := func(ctx context.Context, l net.Listener, callerOf func(*http.Request) gateways.Caller, config *tls.Config) error {
		mux := http.NewServeMux()
		mux.Handle(a.gateways.Handler(rpc.Config{Log: a.cfg.Log, Registerer: a.cfg.Registerer}, callerOf))
		a.cfg.Log.InfoContext(ctx, "serving routes to gateways", "address", l.Addr().String(), "tls", config != nil)
		return rpc.Serve(ctx, rpc.NewServer(rpc.ServerConfig{Handler: mux, TLS: config, Limits: limits, Log: a.cfg.Log}), l, gatewayDrain)
	}
	group, ctx := errgroup.WithContext(ctx)
	if socket != nil {
		group.Go(func() error { return serve(ctx, socket, gateways.Socket, nil) })
	}
	if a.cfg.GatewayListen != "" {
		group.Go(func() error {
			config, err := a.listenerTLS(ctx)
			if err != nil {
				return nil //nolint:nilerr // ctx ended
			}
			l, err := new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.GatewayListen)
			if err != nil {
				return fmt.Errorf("--gateway-listen=%q: use host:port with a port that is free: %w", a.cfg.GatewayListen, err)
			}
			l = a.conns.gateways.ListenAs("gateways", l)
			if config == nil {
				return serve(ctx, l, gateways.Unverified, nil)
			}
			return serve(ctx, l, gateways.Certified, config)
		})
	}
	<-ctx.Done()
	return group.Wait()
}

// checkGatewayURL returns an error if gateways cannot use the URL.
func checkGatewayURL(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || s != u.Scheme+"://"+u.Host || len(s) > 512 {
		return fmt.Errorf("--gateway-url=%q: use http or https, a host and a port if it is not the scheme's, like https://us-east-1.example.com:8443", s)
	}
	return nil
}

// maxSocketPath is the longest path of a socket that the kernel accepts, in bytes, without the zero
// at its end.
const maxSocketPath = 107

// listenOnSocket returns the listener on gateway.sock, or nil if its path is too long.
func (a *Agent) listenOnSocket(ctx context.Context) (net.Listener, error) {
	path := filepath.Join(a.cfg.DataDir, gatewaySocket)
	if len(path) > maxSocketPath {
		a.cfg.Log.WarnContext(ctx, "no socket for gateways: its path is too long; use a shorter data directory, or --gateway-listen", "path", path, "longest", maxSocketPath)
		return nil, nil //nolint:nilnil // gateways may use --gateway-listen
	}
	// This agent holds the lock of the inbox, so the agent that left the socket has ended.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of a previous agent: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for gateways on %s: %w", path, err)
	}
	// Only the owner may enter the directory, so no other user can connect before the socket has
	// its mode.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for gateways: %w", err), l.Close())
	}
	return l, nil
}
