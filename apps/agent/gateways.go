package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/gateways"
	"github.com/windlass-run/windlass/apps/agent/internal/inbox"
	"github.com/windlass-run/windlass/apps/agent/internal/reconcile"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/pkg/rpc"
)

// gatewayDrain is what calls of gateways get when the agent stops: they are short, and
// streams end at once.
const gatewayDrain = time.Second

// drain has everybody who stops something wait for the gateways.
func (a *Agent) drain() {
	again := func() {}
	if d, ok := a.runtime.(runtime.Drainer); ok {
		again = d.Drain(a.gateways.Released, gateways.Patience)
	}
	a.gateways.OnProgress(func() {
		a.reconciler.Proceed()
		a.reconciler.Announce()
		again()
	})
}

// changed has the keys looked at that a frame changed.
func (a *Agent) changed(keys ...inbox.Key) {
	a.gateways.Held(keys...)
	a.reconciler.Enqueue(keys...)
}

// annotated is what the reconciler tells, with what people should know of the gateways, and
// without the readiness of what they cannot connect to.
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

// serveGateways serves the region's routes to its gateways until ctx ends. Whoever may
// open the socket, or reaches the address, may read them and speak for a gateway: the
// socket is its owner's, and the address belongs in the region's own network.
func (a *Agent) serveGateways(ctx context.Context) error {
	if a.cfg.Memory != nil {
		<-ctx.Done() // there is no disk for a socket, and no gateway
		return nil
	}
	listeners, err := a.listenForGateways(ctx)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(a.gateways.Handler(rpc.Config{Log: a.cfg.Log, Registerer: a.cfg.Registerer}))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(listeners))
	limits := gateways.Limits(a.cfg.Registerer)
	for _, l := range listeners {
		a.cfg.Log.InfoContext(ctx, "serving routes to gateways", "address", l.Addr().String())
		server := rpc.NewServer(rpc.ServerConfig{Handler: mux, Limits: limits, Log: a.cfg.Log})
		go func() {
			defer cancel()
			ended <- rpc.Serve(ctx, server, l, gatewayDrain)
		}()
	}
	<-ctx.Done()
	for range listeners {
		err = errors.Join(err, <-ended)
	}
	return err
}

// checkGatewayURL refuses what gateways could not use.
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

// maxSocketPath is what the kernel takes, without the zero at its end.
const maxSocketPath = 107

func (a *Agent) listenForGateways(ctx context.Context) (out []net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range out {
				err = errors.Join(err, l.Close())
			}
		}
	}()
	var listen net.ListenConfig
	path := filepath.Join(a.cfg.DataDir, gatewaySocket)
	if len(path) > maxSocketPath {
		a.cfg.Log.WarnContext(ctx, "no socket for gateways: its path is too long; use a shorter data directory, or --gateway-listen", "path", path, "longest", maxSocketPath)
	} else {
		// The inbox's lock says that whoever left it is gone.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return out, fmt.Errorf("remove the socket of an agent before this one: %w", err)
		}
		l, err := listen.Listen(ctx, "unix", path)
		if err != nil {
			return out, fmt.Errorf("listen for gateways on %s: %w", path, err)
		}
		out = append(out, l)
		// The directory is its owner's alone, so that nobody else gets in before this.
		if err := os.Chmod(path, 0o600); err != nil {
			return out, fmt.Errorf("listen for gateways: %w", err)
		}
	}
	if a.cfg.GatewayListen != "" {
		l, err := listen.Listen(ctx, "tcp", a.cfg.GatewayListen)
		if err != nil {
			return out, fmt.Errorf("--gateway-listen=%q: use host:port with a port that is free: %w", a.cfg.GatewayListen, err)
		}
		out = append(out, l)
	}
	return out, nil
}
