// Package hold decides how requests wait while their app is at zero in the region.
//
//	proxy --Enter--> book: is a permit free? --> the request waits in the route's queue
//	                   |
//	                   '--> Run: calls Wake at once, and again while a request waits --> agent
//
// An app at zero has no instances, and its route says so. The first request for the app wakes it: the gateway
// asks the agent to start instances, which needs no control plane. The route shows when they are ready. Then the
// queue releases requests in the order in which they came.
//
// A wake cannot be lost. While requests wait for an app at zero, Run calls the agent about once a second, until
// the route says that the app is not at zero any more. So a wake survives a restart of the agent. It also
// survives a decision to go to zero that was made at the same time. Refused requests, and clients that
// disconnect, do not cause more calls.
//
// book is pure and gets the time as an argument. Holds adds the lock and the calls.
package hold

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Policy is how requests of one app wait.
type Policy struct {
	// Wait is how long a request waits at most.
	Wait time.Duration
	// Most is how many requests of the app may wait at a time.
	Most int
	// Heartbeat is whether waiting clients that accept server-sent events receive comments, which keep their
	// connections open.
	Heartbeat bool
	// Elsewhere is whether the gateway hands requests over to another region that has a ready instance.
	Elsewhere bool
	// Start is how long a start takes, as the agent has measured. 0: not known.
	Start time.Duration
}

// Default returns the policy of an app that sets none.
func Default() Policy { return Policy{Wait: time.Minute, Most: 256} }

// DefaultMost is the default of Config.Most.
const DefaultMost = 4096

// Config configures Holds.
type Config struct {
	// Wake asks the agent to start instances of the app. It returns how long a start takes until the first
	// instance is ready. 0: not known.
	Wake func(ctx context.Context, appID string) (startDuration time.Duration, err error)
	// AtZero reports whether an app is at zero now. Run calls it with the lock held, so it must take no lock under
	// which Enter or Leave is called.
	AtZero func(appID string) bool
	// Most is how many requests may wait at a time, of all apps together. An app takes a permit only while it holds
	// fewer permits than are free, as package share describes. 0: DefaultMost.
	Most int
	Now  func() time.Time
	// Rand returns a number in [0, 1). It must be safe for concurrent use.
	Rand       func() float64
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// callTimeout bounds one call to the agent, which is on the same host or network.
const callTimeout = 2 * time.Second

// Holds counts the requests that wait, and wakes their apps. It is safe for concurrent use. Make it
// with New, and call Run once.
type Holds struct {
	cfg     Config
	metrics *metrics
	// changed makes Run ask the book again which calls are due.
	changed chan struct{}

	mu   sync.Mutex
	book *book
}

// New checks the config.
func New(cfg Config) (*Holds, error) {
	if cfg.Wake == nil || cfg.AtZero == nil || cfg.Now == nil || cfg.Rand == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("hold: every field of Config except Most is required")
	}
	if cfg.Most < 0 {
		return nil, errors.New("hold: Most is negative")
	}
	if cfg.Most == 0 {
		cfg.Most = DefaultMost
	}
	h := &Holds{cfg: cfg, changed: make(chan struct{}, 1), book: newBook(cfg.Most)}
	var err error
	h.metrics, err = newMetrics(cfg.Registerer, h.allCounts)
	return h, err
}

// Permit is one request that waits.
type Permit struct {
	h     *Holds
	appID string
	since time.Time
	once  sync.Once
}

// Refusal is the answer to a request that must not wait.
type Refusal struct {
	// Process is whether Config.Most is the reason, which limits the requests of all apps in this process.
	// Otherwise the reason is the app's own Policy.Most.
	Process bool
	// RetryAfter is the time until an instance should be ready.
	RetryAfter time.Duration
}

// Enter takes a permit for a request, and wakes the app. A request that is refused wakes the app, too.
func (h *Holds) Enter(appID, appName string, p Policy) (*Permit, *Refusal) {
	now := h.cfg.Now()
	h.mu.Lock()
	refused, wake := h.book.takePermit(appID, appName, p, now)
	h.mu.Unlock()
	if wake {
		select {
		case h.changed <- struct{}{}:
		default: // Run has yet to receive the last signal
		}
	}
	if refused != nil {
		h.metrics.countOutcome(outcomeRefused, appID, appName)
		return nil, refused
	}
	h.metrics.countOutcome(outcomeHeld, appID, appName)
	return &Permit{h: h, appID: appID, since: now}, nil
}

// Leave frees the permit, and returns how long the request waited. released is whether the request got an
// instance. Calls after the first do nothing and return 0.
func (p *Permit) Leave(released bool) (waited time.Duration) {
	p.once.Do(func() {
		now := p.h.cfg.Now()
		p.h.mu.Lock()
		name, startDuration := p.h.book.freePermit(p.appID, released, now)
		p.h.mu.Unlock()
		waited = now.Sub(p.since)
		if released {
			p.h.metrics.countOutcome(outcomeReleased, p.appID, name)
		}
		if startDuration > 0 {
			p.h.metrics.observeStart(p.appID, name, startDuration)
		}
	})
	return waited
}

// RetryAfter returns the time until an instance of the app should be ready, for a request that waited without
// success.
func (h *Holds) RetryAfter(appID string, p Policy) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.book.retryAfter(appID, p, h.cfg.Now())
}

func (h *Holds) allCounts() []count {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.book.countsOf()
}

// Forget drops the state and the metrics of apps that are not routed any more.
func (h *Holds) Forget(routed func(appID string) bool) {
	h.mu.Lock()
	forgotten := h.book.forgetApps(routed)
	h.mu.Unlock()
	for _, id := range forgotten {
		h.metrics.forgetApp(id)
	}
}

// Run wakes apps until ctx ends.
func (h *Holds) Run(ctx context.Context) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		h.mu.Lock()
		due, next := h.book.dueWakes(h.cfg.Now(), h.cfg.AtZero)
		h.mu.Unlock()
		for _, id := range due {
			calls.Go(func() { h.wakeApp(ctx, id) })
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.changed:
		case <-timer.C:
		}
	}
}

func (h *Holds) wakeApp(ctx context.Context, appID string) {
	bounded, cancel := context.WithTimeoutCause(ctx, callTimeout, errors.New("the agent did not answer"))
	defer cancel()
	startDuration, err := h.cfg.Wake(bounded, appID)
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	failures := h.book.recordAnswer(appID, startDuration, err == nil, h.cfg.Now(), h.cfg.Rand)
	h.mu.Unlock()
	if err != nil && failures == 1 {
		h.cfg.Log.WarnContext(ctx, "cannot wake an app at zero; requests wait, will try again", "app_id", appID, "error", err)
	}
	select {
	case h.changed <- struct{}{}: // the time of the next call has changed
	default:
	}
}
