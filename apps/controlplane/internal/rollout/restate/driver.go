// Package restate is the rollout driver over Restate: one step of an app at a time
// across all replicas of the control plane, and retries that outlive each of them.
//
// An app is a virtual object without state, for everything true is in SQL. A wake-up
// is one send, and one invocation of the object's handler, which runs the step. When
// to look again is a row that the step wrote, and the Sweeper sends it when it is
// due: a delayed send would cost another invocation, and one that is not needed any
// more cannot be taken back.
//
// # What happens when
//
//   - a step fails: its invocation is tried again, for ever, at most four seconds
//     apart. Restate's default would pause the key after a while, which is why an
//     outage of the database must not be left to it. Once a step passes again, what
//     waits for its next try is tried at once.
//   - Restate loses its data: reconcile finds that it does not know us, voids what was
//     sent to it, and registers us again. The Sweeper brings every app back.
//   - our address changes: invocations are pinned to the deployment that they
//     began on. Reconcile gives a deployment of ours whose address is dead the
//     address that is alive; what only code that is gone could finish it ends, and
//     the Sweeper starts over. See reconcile.go.
package restate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/pkg/conns"
)

// Config of a Driver.
type Config struct {
	// Step that the workflow consists of.
	Step rollout.Step
	// Lost is called when Restate has forgotten wake-ups that it had taken, before it can
	// take others.
	Lost func(context.Context) error
	// Ingress and Admin are Restate's URLs.
	Ingress, Admin string
	// IdentityKeys are public keys of Restate's request identity (publickeyv1_...). With
	// any, calls that none of them signed are refused.
	IdentityKeys []string
	// Listen is the address of the endpoint that Restate calls.
	Listen string
	// Advertise is the URL under which Restate reaches that endpoint. Empty: the
	// address that is listened on, which must then name a host. Replicas behind
	// one address advertise that one.
	Advertise string
	// TLS of the listener; nil: none.
	TLS *tls.Config
	// Conns limits the connections to the listener. Nil: nothing does.
	Conns *conns.Table
	// Remote changes the transport of calls of Restate, and of the addresses that are
	// registered there, for https; nil: nothing does.
	Remote func(*http.Transport)
	// Service is the virtual object's name. Control planes that share a Restate
	// need different ones. Empty: "WindlassApp".
	Service string
	Log     *slog.Logger
	// ReconcileEvery is how often the registration is checked. 0: 5 s.
	ReconcileEvery time.Duration
}

// Driver implements rollout.Driver.
type Driver struct {
	cfg      Config
	endpoint *url.URL // what is registered
	listener net.Listener
	server   *http.Server
	client   *http.Client
	admin    admin
	// check asks for a reconciliation now.
	check chan struct{}
	// warmed is closed when the first step will not wait for the SDK.
	warmed chan struct{}
	// failing is set from the first step that fails to the next that does not, so
	// that an outage of the database is told once and not for each app and retry.
	failing atomic.Bool
	// recovered is set by the first step that passes after some that did not.
	recovered atomic.Bool
}

// handlersVersion names the handlers' code in the address. What is in flight goes
// on with the code that it began with, so the version changes whenever the order
// or the kinds of the handlers' durable steps do.
const handlersVersion = "v2"

// New checks cfg and begins to listen; Run serves.
func New(cfg Config) (*Driver, error) { return newVersion(cfg, handlersVersion) }

func newVersion(cfg Config, version string) (*Driver, error) {
	if cfg.Step == nil || cfg.Lost == nil || cfg.Log == nil {
		return nil, errors.New("restate: Step, Lost and Log are required")
	}
	if cfg.Service == "" {
		cfg.Service = "WindlassApp"
	}
	if cfg.ReconcileEvery == 0 {
		cfg.ReconcileEvery = 5 * time.Second
	}
	for name, value := range map[string]*string{"ingress": &cfg.Ingress, "admin": &cfg.Admin} {
		u, err := url.Parse(*value)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("restate: %s %q: use a URL like http://127.0.0.1:8080", name, *value)
		}
		*value = strings.TrimRight(*value, "/")
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("restate: listen for workflow calls: %w", err)
	}
	if cfg.Conns != nil {
		listener = cfg.Conns.ListenAs("restate", listener)
	}
	endpoint, err := advertised(cfg, version, listener)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	d := &Driver{
		cfg: cfg, endpoint: endpoint, listener: listener, check: make(chan struct{}, 1), warmed: make(chan struct{}),
	}
	transport := &http.Transport{MaxIdleConnsPerHost: maxSends, MaxConnsPerHost: maxSends, IdleConnTimeout: time.Minute}
	if cfg.Remote != nil {
		cfg.Remote(transport)
	}
	d.client = &http.Client{Timeout: requestTimeout, Transport: transport}
	d.admin = admin{url: cfg.Admin, client: d.client}
	if d.server, err = newServer(d); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return d, nil
}

func advertised(cfg Config, version string, l net.Listener) (*url.URL, error) {
	advertise := cfg.Advertise
	if advertise == "" {
		host, _, err := net.SplitHostPort(l.Addr().String())
		if ip := net.ParseIP(host); err != nil || ip == nil || ip.IsUnspecified() {
			return nil, fmt.Errorf("restate: listening on %s, which is no address to call: set the address to advertise", l.Addr())
		}
		if advertise = "http://" + l.Addr().String(); cfg.TLS != nil {
			advertise = "https://" + l.Addr().String()
		}
	}
	u, err := url.Parse(advertise)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("restate: advertised address %q: use a URL like http://controlplane:9080", advertise)
	}
	u.Path = path.Join("/", u.Path, "workflow", version)
	return u, nil
}

// Ready is nil when steps can be run without a delay that only the first one has.
func (d *Driver) Ready(context.Context) error {
	select {
	case <-d.warmed:
		return nil
	default:
		return errors.New("the workflows' runtime is being compiled")
	}
}

// Endpoint is the URL that is registered with Restate.
func (d *Driver) Endpoint() string { return d.endpoint.String() }

// drainTime is for steps that run when the program is told to stop. What does not
// end in it is tried again by Restate elsewhere.
const drainTime = 5 * time.Second

// Run serves Restate's calls and keeps the registration until ctx ends.
func (d *Driver) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.warm(ctx) })
	group.Go(func() error {
		serve := func() error { return d.server.Serve(d.listener) }
		if d.cfg.TLS != nil {
			serve = func() error { return d.server.ServeTLS(d.listener, "", "") }
		}
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("restate: serve workflow calls: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		if d.server.Shutdown(drain) != nil {
			return d.server.Close()
		}
		return nil
	})
	group.Go(func() error { return d.reconcileLoop(ctx) })
	return group.Wait()
}

const (
	// maxSends go to Restate at once; it takes a few hundred a second of them.
	maxSends = 16
	// requestTimeout bounds one call of Restate, which answers in milliseconds.
	requestTimeout = 5 * time.Second
)

// Wake implements rollout.Driver: one send for each app.
func (d *Driver) Wake(ctx context.Context, appIDs []string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxSends)
	for _, id := range appIDs {
		group.Go(func() error { return d.send(ctx, id) })
	}
	return group.Wait()
}

func (d *Driver) send(ctx context.Context, appID string) error {
	u := d.cfg.Ingress + "/" + url.PathEscape(d.cfg.Service) + "/" + url.PathEscape(appID) + "/" + stepHandler + "/send"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u, nil)
	if err != nil {
		return fmt.Errorf("wake app %s: %w", appID, err)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return fmt.Errorf("wake app %s: %w", appID, err)
	}
	defer discard(resp)
	if resp.StatusCode == http.StatusNotFound {
		d.Reconcile() // Restate does not know us
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("wake app %s: %w", appID, answer(resp))
	}
	return nil
}

// Reconcile has the registration checked now rather than at its time.
func (d *Driver) Reconcile() {
	select {
	case d.check <- struct{}{}:
	default:
	}
}
