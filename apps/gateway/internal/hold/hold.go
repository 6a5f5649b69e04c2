// Package hold decides how requests wait while their app is at zero in the region.
//
//	proxy --Enter--> book: is there room? --> the request waits in the route's queue
//	                   |
//	                   '--> Run: Wake, at once and again while any request waits --> agent
//
// An app at zero has no instances, and its route says so. The first request that waits wakes it: the
// agent starts instances, also while the control plane is away. The route shows when they are ready,
// and the queue then lets requests go in the order in which they came.
//
// A wake is not an event that could be lost. While requests wait for an app at zero, Run calls the agent
// once a second, until the route says that the app is not at zero any more. Requests that are refused or
// whose clients go away do not make it call more often. So a wake survives a restart
// of the agent, and a decision to go to zero that was made at the same time.
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
	// Most is how many requests wait at a time.
	Most int
	// Heartbeat sends comments to clients that asked for a stream of events.
	Heartbeat bool
	// Elsewhere hands requests to another region that has a ready instance.
	Elsewhere bool
	// Start is how long a start takes, as the agent has measured. 0: not known.
	Start time.Duration
}

// Default returns the policy of an app that sets none.
func Default() Policy { return Policy{Wait: time.Minute, Most: 256} }

// DefaultMost is how many requests one process holds, of all apps together. An app has no more of them than it
// leaves free.
const DefaultMost = 4096

// Config configures Holds.
type Config struct {
	// Wake asks the agent to start instances of the app. It returns how long it takes until the first
	// one is ready, 0 if that is not known.
	Wake func(ctx context.Context, appID string) (time.Duration, error)
	// Held reports whether an app is at zero now.
	Held func(appID string) bool
	// Most is how many requests wait at a time, of all apps together. 0: DefaultMost.
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
// with New, run it once.
type Holds struct {
	cfg     Config
	metrics *metrics
	more    chan struct{}

	mu   sync.Mutex
	book *book
}

// New checks the config.
func New(cfg Config) (*Holds, error) {
	if cfg.Wake == nil || cfg.Held == nil || cfg.Now == nil || cfg.Rand == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("hold: every field of Config but Most is required")
	}
	if cfg.Most < 0 {
		return nil, errors.New("hold: Most is negative")
	}
	if cfg.Most == 0 {
		cfg.Most = DefaultMost
	}
	h := &Holds{cfg: cfg, more: make(chan struct{}, 1), book: newBook(cfg.Most)}
	var err error
	h.metrics, err = newMetrics(cfg.Registerer, h.counts)
	return h, err
}

// Place is one request that waits.
type Place struct {
	h     *Holds
	appID string
	since time.Time
	once  sync.Once
}

// Refusal is the answer to a request that must not wait.
type Refusal struct {
	// Process reports that the process holds as many requests of all apps as it may, or that the app has as many
	// places as it leaves free.
	Process bool
	// RetryAfter is when an instance should be ready.
	RetryAfter time.Duration
}

// Enter takes a place for a request, and wakes the app. A request that is refused wakes the app, too.
func (h *Holds) Enter(appID, appName string, p Policy) (*Place, *Refusal) {
	now := h.cfg.Now()
	h.mu.Lock()
	refused, wake := h.book.takePlace(appID, appName, p, now)
	h.mu.Unlock()
	if wake {
		select {
		case h.more <- struct{}{}:
		default: // Run is already signalled
		}
	}
	if refused != nil {
		h.metrics.countOutcome(outcomeRefused, appID, appName)
		return nil, refused
	}
	h.metrics.countOutcome(outcomeHeld, appID, appName)
	return &Place{h: h, appID: appID, since: now}, nil
}

// Leave frees the place. released is whether the request got an instance. Leave returns how long the request
// waited. Calls after the first do nothing.
func (p *Place) Leave(released bool) (waited time.Duration) {
	p.once.Do(func() {
		now := p.h.cfg.Now()
		p.h.mu.Lock()
		name, start := p.h.book.freePlace(p.appID, released, now)
		p.h.mu.Unlock()
		waited = now.Sub(p.since)
		if released {
			p.h.metrics.countOutcome(outcomeReleased, p.appID, name)
		}
		if start > 0 {
			p.h.metrics.observeStart(p.appID, name, start)
		}
	})
	return waited
}

// RetryAfter returns the time until an instance of the app should be ready, for a request that waited in vain.
func (h *Holds) RetryAfter(appID string, p Policy) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.book.retryAfter(appID, p, h.cfg.Now())
}

func (h *Holds) counts() []count {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.book.counts()
}

// Forget drops the figures of apps that are not routed any more.
func (h *Holds) Forget(routed func(appID string) bool) {
	h.mu.Lock()
	gone := h.book.forgetApps(routed)
	h.mu.Unlock()
	for _, id := range gone {
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
		// cfg.Held is called under the lock: it must take no lock under which Enter or Leave is called.
		h.mu.Lock()
		due, next := h.book.dueWakes(h.cfg.Now(), h.cfg.Held)
		h.mu.Unlock()
		for _, id := range due {
			calls.Go(func() { h.wakeApp(ctx, id) })
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.more:
		case <-timer.C:
		}
	}
}

func (h *Holds) wakeApp(ctx context.Context, appID string) {
	bounded, cancel := context.WithTimeoutCause(ctx, callTimeout, errors.New("the agent did not answer"))
	defer cancel()
	start, err := h.cfg.Wake(bounded, appID)
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	failures := h.book.noteAnswer(appID, start, err == nil, h.cfg.Now(), h.cfg.Rand)
	h.mu.Unlock()
	if err != nil && failures == 1 {
		h.cfg.Log.WarnContext(ctx, "cannot wake an app at zero; requests wait, will try again", "app_id", appID, "error", err)
	}
	select {
	case h.more <- struct{}{}: // the time of the next call has changed
	default:
	}
}
