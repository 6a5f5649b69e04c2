// Package remoteregions chooses the region to which a request is handed over: the nearest other region in which
// the app has a ready instance.
//
//	agent ──Neighbours──▶ Regions ──Choose──▶ proxy
//	                        │  ▲                │
//	        a connection ◀──┘  └── Refused, ────┘
//	        to each, now and then  Unreachable, Took
//
// A region's distance is the time to open a connection to its gateways, in whole milliseconds. The shortest of
// the last few connections counts. Regions at the same distance are sorted by name. The control plane's data
// about a region is a few seconds old, and a refusal by a gateway of that region is newer. So after a refusal the
// region gets no requests of the app for a short time, which grows with each refusal.
package remoteregions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/neighbours"
)

const (
	// every is the time between two connections that measure how near a gateway is.
	every = 10 * time.Second
	// timeout is the time that such a connection may take.
	timeout = 2 * time.Second
	// atOnce is how many such connections are made at the same time.
	atOnce = 16
	// samples is how many of a gateway's last connections count.
	samples = 3
)

var (
	// again is the time until a gateway that could not be reached is tried again.
	again = backoff.Policy{Min: 200 * time.Millisecond, Max: 10 * time.Second}
	// holds is the time for which a region gets no requests of an app after it refused one.
	holds = backoff.Policy{Min: 200 * time.Millisecond, Max: 5 * time.Second}
)

// Config configures Regions.
type Config struct {
	Log *slog.Logger
	// Now and Rand must be safe for concurrent use. Rand returns a number in [0, 1).
	Now  func() time.Time
	Rand func() float64
	// Allow are networks, in addition to public addresses, in which gateways of other regions may be.
	Allow guard.Networks
	// Near connects to a region's gateways and returns how long that took. Nil: Connect.
	Near func(context.Context, *url.URL) (time.Duration, error)
	// Gone is called with the URL of gateways to which requests are not handed over any more.
	Gone func(gatewayURL string)
}

// Regions knows the regions to which requests may be handed over. It is safe for concurrent use. Make it with
// New, and call Run once.
type Regions struct {
	cfg  Config
	more chan struct{}

	mu       sync.Mutex
	picture  *neighbours.Picture
	gateways map[string]*gateway // by URL
	refused  map[refusal]hold
	// changed is closed when a region may have become available to Choose.
	changed chan struct{}
}

// gateway is the address at which a region's gateways are reached.
type gateway struct {
	url *url.URL
	// took is how long the last connections took. failures counts the failed attempts since then.
	took     []time.Duration
	failures int
	// due is when the gateway is tried next.
	due   time.Time
	tried bool // an attempt runs now
	away  bool // the last attempt failed
}

type refusal struct{ app, url string }

type hold struct {
	times int
	until time.Time
}

// New returns a Regions that knows no region yet.
func New(cfg Config) *Regions {
	if cfg.Near == nil {
		cfg.Near = func(ctx context.Context, u *url.URL) (time.Duration, error) { return Connect(ctx, cfg.Allow, u) }
	}
	return &Regions{cfg: cfg, more: make(chan struct{}, 1), gateways: map[string]*gateway{}, refused: map[refusal]hold{}, changed: make(chan struct{})}
}

// Region is another region, to which a request may be handed over.
type Region struct {
	Name string
	// URL is the URL of the region's gateways, without a path.
	URL *url.URL
	key refusal
}

// Here returns the name of this region. Empty: neither this region's name nor other regions are known yet.
func (r *Regions) Here() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.picture == nil {
		return ""
	}
	return r.picture.Region
}

// Put replaces the picture of the other regions by p.
func (r *Regions) Put(p *neighbours.Picture) {
	var gone []string
	r.mu.Lock()
	r.picture = p
	wanted := map[string]bool{}
	for _, app := range p.Apps {
		for _, n := range app.Regions {
			if wanted[n.GatewayUrl] {
				continue
			}
			wanted[n.GatewayUrl] = true
			if r.gateways[n.GatewayUrl] != nil {
				continue
			}
			u, err := url.Parse(n.GatewayUrl)
			if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
				r.cfg.Log.Error("gateways of another region cannot be reached: their URL is neither http nor https", "region", n.Region, "gateway_url", n.GatewayUrl)
				u = nil
			}
			r.gateways[n.GatewayUrl] = &gateway{url: u}
		}
	}
	for known := range r.gateways {
		if !wanted[known] {
			delete(r.gateways, known)
			gone = append(gone, known)
		}
	}
	for k := range r.refused {
		if !wanted[k.url] || p.Apps[k.app] == nil {
			delete(r.refused, k)
		}
	}
	r.wakeAwait()
	r.mu.Unlock()
	for _, known := range gone {
		r.cfg.Gone(known)
	}
	r.wakeProber()
}

func (r *Regions) wakeProber() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// Choose returns the nearest region that has a ready instance of the app and was reachable at the last attempt. It
// leaves out regions in tried, and regions that refused the app a short time ago. It returns false if no region is
// left.
func (r *Regions) Choose(appID string, tried []string) (Region, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.picture == nil {
		return Region{}, false
	}
	now := r.cfg.Now()
	var best Region
	var nearest time.Duration
	for _, n := range r.picture.Apps[appID].GetRegions() {
		g, key := r.gateways[n.GatewayUrl], refusal{appID, n.GatewayUrl}
		if g.url == nil || g.failures > 0 || now.Before(r.refused[key].until) || slices.Contains(tried, n.Region) {
			continue
		}
		if near := g.connectTime(); best.Name == "" || cmp.Or(cmp.Compare(near, nearest), cmp.Compare(n.Region, best.Name)) < 0 {
			best, nearest = Region{Name: n.Region, URL: g.url, key: key}, near
		}
	}
	return best, best.Name != ""
}

// wakeAwait wakes Await. The caller holds mu.
func (r *Regions) wakeAwait() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Await returns nil once Choose has a region for the app, and otherwise the error of ctx. The control plane's data
// about other regions is a few seconds old, so Choose may soon find a region.
func (r *Regions) Await(ctx context.Context, appID string) error {
	for {
		r.mu.Lock()
		changed, held := r.changed, r.heldUntil(appID)
		r.mu.Unlock()
		if _, ok := r.Choose(appID, nil); ok {
			return nil
		}
		wait := time.Hour
		if !held.IsZero() {
			wait = max(held.Sub(r.cfg.Now()), time.Millisecond)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// heldUntil returns the earliest time at which a region that refused the app may be chosen again. Zero: no region
// refused it. The caller holds mu.
func (r *Regions) heldUntil(appID string) (first time.Time) {
	if r.picture == nil {
		return first
	}
	now := r.cfg.Now()
	for _, n := range r.picture.Apps[appID].GetRegions() {
		until := r.refused[refusal{appID, n.GatewayUrl}].until
		if now.Before(until) && (first.IsZero() || until.Before(first)) {
			first = until
		}
	}
	return first
}

// Reached returns how many other regions have gateways that this gateway can reach.
func (r *Regions) Reached() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.gateways {
		if len(g.took) > 0 && g.failures == 0 {
			n++
		}
	}
	return n
}

// connectTime returns how long a connection takes, in whole milliseconds. A gateway that was never connected to
// counts as the farthest.
func (g *gateway) connectTime() time.Duration {
	if len(g.took) == 0 {
		return time.Hour
	}
	return slices.Min(g.took).Truncate(time.Millisecond)
}

// Took records that the region took a request of the app.
func (r *Regions) Took(at Region) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.refused, at.key)
}

// Refused records that the region had no instance or no room for a request of the app.
func (r *Regions) Refused(at Region) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holdRegion(at)
}

func (r *Regions) holdRegion(at Region) {
	h := r.refused[at.key]
	h.until = r.cfg.Now().Add(holds.Delay(h.times, r.cfg.Rand))
	h.times++
	r.refused[at.key] = h
}

// Unreachable records that the gateways of the region could not be reached. They get no requests until a
// connection succeeds. Also, they get no requests of the app for a short time from now on.
func (r *Regions) Unreachable(at Region) {
	r.mu.Lock()
	r.holdRegion(at)
	if g := r.gateways[at.key.url]; g != nil && g.failures == 0 {
		g.failures, g.due = 1, r.cfg.Now()
	}
	r.mu.Unlock()
	r.wakeProber()
}

// Run measures how near the regions are until ctx ends.
func (r *Regions) Run(ctx context.Context) error {
	var tries sync.WaitGroup
	defer tries.Wait()
	slots := make(chan struct{}, atOnce)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.more:
		case <-timer.C:
		}
		due, next := r.dueGateways(r.cfg.Now())
		for _, g := range due {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case slots <- struct{}{}:
			}
			tries.Go(func() {
				took, err := r.cfg.Near(ctx, g.url)
				<-slots
				if ctx.Err() == nil {
					r.noteTried(g, took, err)
				}
			})
		}
		timer.Reset(next)
	}
}

// dueGateways returns the gateways to try now, and the time until the next gateway is due.
func (r *Regions) dueGateways(now time.Time) (due []*gateway, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next = every
	for _, g := range r.gateways {
		switch wait := g.due.Sub(now); {
		case g.url == nil || g.tried:
		case wait <= 0:
			g.tried = true
			due = append(due, g)
		default:
			next = min(next, wait)
		}
	}
	return due, next
}

func (r *Regions) noteTried(g *gateway, took time.Duration, err error) {
	r.mu.Lock()
	g.tried = false
	local := err != nil && conns.Local(err)
	switch {
	case local: // a lack of resources of this process says nothing about the region
	case err != nil && !g.away:
		g.away = true
		r.cfg.Log.Warn("gateways of another region cannot be reached: requests are not handed over to that region", "gateway_url", g.url.String(), "error", err)
	case err == nil && g.away:
		g.away = false
		r.cfg.Log.Info("gateways of another region can be reached again", "gateway_url", g.url.String())
	}
	switch {
	case local:
		g.due = r.cfg.Now().Add(again.Delay(g.failures, r.cfg.Rand))
	case err != nil:
		g.due = r.cfg.Now().Add(again.Delay(g.failures, r.cfg.Rand))
		g.failures++
	default:
		if g.failures > 0 {
			r.wakeAwait()
		}
		g.failures, g.due = 0, r.cfg.Now().Add(every/2+time.Duration(r.cfg.Rand()*float64(every)))
		if g.took = append(g.took, took); len(g.took) > samples {
			g.took = g.took[1:]
		}
	}
	r.mu.Unlock()
	r.wakeProber()
}

// Connect connects to the address of the URL, sends nothing, and returns how long that took.
func Connect(ctx context.Context, allow guard.Networks, u *url.URL) (took time.Duration, _ error) {
	began := time.Now()
	d := Dialer(allow, u)
	d.Timeout = timeout
	conn, err := d.DialContext(ctx, "tcp", Address(u))
	switch {
	case errors.Is(err, guard.ErrRefused) && u.Scheme == "http":
		return 0, fmt.Errorf("%w: without TLS the address must be in a network of --neighbour-allow", err)
	case errors.Is(err, guard.ErrRefused):
		return 0, fmt.Errorf("%w: add its network to --neighbour-allow if the address belongs to another region", err)
	case err != nil:
		return 0, err
	}
	return time.Since(began), conn.Close()
}

// Dialer returns a dialer for the gateways at the URL, which the owner of their region chose. Without TLS, nothing
// proves that a gateway answers at the address. So an address without TLS must be in allow, even a public address.
func Dialer(allow guard.Networks, u *url.URL) *net.Dialer {
	if u.Scheme == "https" {
		return allow.Dialer()
	}
	return allow.ListedDialer()
}

// Address returns the host:port of an http or https URL.
func Address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
