// Package restate is the rollout driver over Restate. It runs one step of an app at a time across all processes of the
// control plane, with retries that survive each process.
//
// An app is a virtual object without state, because its state is in SQL. A wake-up is
// one send, and one invocation of the object's handler, which runs the step. The time of
// the next step is a row that the step wrote. The Sweeper sends it when it is due. A
// delayed send would cost another invocation, and could not be cancelled.
//
// # What happens when
//
//   - a step fails: Restate retries its invocation without limit, at most four seconds
//     apart. Restate's default would pause the key after some retries, so an outage of
//     the database would stop the app. Once a step succeeds again, invocations that
//     wait for a retry are retried at once.
//   - Restate loses its data: reconcile finds that Restate does not know this service,
//     marks the sent wake-ups as lost, and registers the service again. The Sweeper
//     sends the wake-ups again.
//   - the address of this process changes: invocations are pinned to the deployment
//     that they began on. Reconcile moves a deployment whose address is dead to this
//     address, if the handlers are the same. Otherwise it ends the invocations, and
//     the Sweeper wakes their apps. See reconcile.go.
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

	"github.com/windlass-run/windlass/apps/controlplane/internal/failover"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/pkg/conns"
)

// Config of a Driver.
type Config struct {
	// Step is what an invocation runs.
	Step rollout.Step
	// Lost is called when Restate has lost wake-ups that it had accepted, before it can accept
	// new wake-ups.
	Lost func(context.Context) error
	// Ingress and Admin are Restate's URLs. With several, of the nodes of one cluster, the first one that is up is
	// used. No URL of Admin is secret, because logs and metrics have the URLs.
	Ingress, Admin []string
	// Failover gets what happens to several URLs. nil: nothing does.
	Failover *failover.Metrics
	// IdentityKeys are public keys of Restate's request identity (publickeyv1_...). If there are
	// any, calls that are not signed with one of them are refused.
	IdentityKeys []string
	// Listen is the address of the endpoint that Restate calls.
	Listen string
	// Advertise is the URL at which Restate reaches that endpoint. Empty: the address of the listener, which must then
	// contain an IP address. Processes behind one address advertise that address.
	Advertise string
	// TLS of the listener. nil: no TLS.
	TLS *tls.Config
	// Conns limits the connections to the listener. nil: no limit.
	Conns *conns.Table
	// Remote changes the transport of calls to Restate, and to the addresses that are
	// registered there, for https. nil: it stays as it is.
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
	ingress  *failover.Set
	admin    admin
	// check requests a reconciliation now.
	check chan struct{}
	// warmed is closed when the SDK is compiled, so that no step waits for it.
	warmed chan struct{}
	// failing is true from a step that fails to the next step that succeeds, so that
	// an outage of the database is logged once, not for each app and retry.
	failing atomic.Bool
	// recovered is set by the first step that succeeds after a failure.
	recovered atomic.Bool
}

// handlersVersion is the version of the handlers' code, and part of the address. An
// invocation must continue with the code that it began with. So the version changes
// whenever the order or the kinds of the handlers' durable steps do.
const handlersVersion = "v2"

// New checks cfg and begins to listen. Run serves the calls.
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
	var err error
	if cfg.Ingress, err = cleanURLs("ingress", cfg.Ingress); err != nil {
		return nil, err
	}
	if cfg.Admin, err = cleanURLs("admin", cfg.Admin); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("restate: listen for workflow calls: %w", err)
	}
	if cfg.Conns != nil {
		listener = cfg.Conns.ListenAs("restate", listener)
	}
	endpoint, err := advertisedURL(cfg, version, listener)
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
	if err := d.openSets(); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	if d.server, err = newServer(d); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return d, nil
}

// cleanURLs checks a list of Restate's URLs.
func cleanURLs(name string, urls []string) ([]string, error) {
	if len(urls) == 0 {
		return nil, fmt.Errorf("restate: %s: use a URL like http://127.0.0.1:8080", name)
	}
	clean := make([]string, len(urls))
	for i, raw := range urls {
		u, err := url.Parse(strings.TrimSpace(raw))
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("restate: %s %q: use a URL like http://127.0.0.1:8080", name, raw)
		}
		clean[i] = strings.TrimRight(strings.TrimSpace(raw), "/")
	}
	return clean, nil
}

// openSets makes the sets of Restate's URLs.
func (d *Driver) openSets() (err error) {
	open := func(service, path string, urls []string) (*failover.Set, error) {
		shown := make([]string, len(urls))
		for i, raw := range urls {
			u, err := url.Parse(raw)
			if err != nil {
				return nil, fmt.Errorf("restate: %w", err)
			}
			shown[i] = u.Redacted()
		}
		set, err := failover.New(failover.Config{
			Service: service, Addresses: shown, Metrics: d.cfg.Failover, Log: d.cfg.Log,
			Check: func(ctx context.Context, i int) error { return d.checkURL(ctx, urls[i]+path) },
		})
		if err != nil {
			return nil, fmt.Errorf("restate: %s: %w", service, err)
		}
		return set, nil
	}
	if d.ingress, err = open("restate-ingress", "/restate/health", d.cfg.Ingress); err != nil {
		return err
	}
	d.admin = admin{urls: d.cfg.Admin, client: d.client}
	d.admin.set, err = open("restate-admin", "/health", d.cfg.Admin)
	return err
}

// checkURL returns an error unless the URL answers with status 200.
func (d *Driver) checkURL(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer discardBody(resp)
	if resp.StatusCode != http.StatusOK {
		return answerError(resp)
	}
	return nil
}

// Reachable returns an error unless Restate's admin API answers. It is a health check.
func (d *Driver) Reachable(ctx context.Context) error {
	return d.admin.call(ctx, http.MethodGet, "/health", nil, nil)
}

// ListAddresses returns the states of the URLs of the ingress and of the admin API.
func (d *Driver) ListAddresses() (ingress, admin []failover.Status) {
	return d.ingress.ListStatus(), d.admin.set.ListStatus()
}

func advertisedURL(cfg Config, version string, l net.Listener) (*url.URL, error) {
	advertise := cfg.Advertise
	if advertise == "" {
		host, _, err := net.SplitHostPort(l.Addr().String())
		if ip := net.ParseIP(host); err != nil || ip == nil || ip.IsUnspecified() {
			return nil, fmt.Errorf("restate: listening on %s, which Restate cannot call: set the address to advertise", l.Addr())
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

// Ready returns nil when the SDK is compiled, so that the first step runs without that delay.
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

// drainTime is how long steps may go on when the program stops. Restate retries a step that does not end in time, at
// another process.
const drainTime = 5 * time.Second

// Run serves Restate's calls and keeps the registration until ctx ends.
func (d *Driver) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.warmUp(ctx) })
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
	group.Go(func() error { return d.ingress.Run(ctx) })
	group.Go(func() error { return d.admin.set.Run(ctx) })
	group.Go(func() error {
		d.ingress.CheckAll(ctx)
		d.admin.set.CheckAll(ctx)
		return d.reconcileLoop(ctx)
	})
	return group.Wait()
}

const (
	// maxSends is how many calls to Restate are made at once.
	maxSends = 16
	// requestTimeout bounds one call to Restate, which usually takes milliseconds.
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

// send may send a wake-up twice, if the answer of one node is lost. That does no harm, because a step that has nothing
// to do changes nothing.
func (d *Driver) send(ctx context.Context, appID string) error {
	path := "/" + url.PathEscape(d.cfg.Service) + "/" + url.PathEscape(appID) + "/" + stepHandler + "/send"
	err := d.ingress.TryEach(ctx, func(i int) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.cfg.Ingress[i]+path, nil)
		if err != nil {
			return err
		}
		resp, err := d.client.Do(req)
		if err != nil {
			return failover.TryNext(err)
		}
		defer discardBody(resp)
		if resp.StatusCode == http.StatusNotFound {
			d.Reconcile() // Restate does not know us
		}
		return answerOrNext(resp)
	})
	if err != nil {
		return fmt.Errorf("wake app %s: %w", appID, err)
	}
	return nil
}

// Reconcile asks Run to check the registration now. It does not wait for that.
func (d *Driver) Reconcile() {
	select {
	case d.check <- struct{}{}:
	default:
	}
}
