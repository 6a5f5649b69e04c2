// Package prober finds out whether the gateway can reach the instances that the region's agent
// reports as ready, before requests are sent to them. The agent's health check cannot show that, because
// the gateway may be in another network, in which another process answers at the address.
//
// A probe opens a connection and makes the deployment's health check on it, if the gateway knows
// one. An instance that fails is probed again with growing delays, as long as the agent reports it
// as ready. An instance that passes is not probed again, because the agent's checks and the
// requests watch it from then on. The result counts like the outcome of a request.
package prober

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/conns"
)

const (
	// connectTimeout is the same as for the connections of requests.
	connectTimeout = 2 * time.Second
	// maxConcurrent bounds the probes that run at the same time. A probe that runs longer than
	// connectTimeout no longer counts, so that instances that do not answer their checks do not
	// delay the probes of other instances.
	maxConcurrent = 64
)

// retryDelays are the delays before an instance that failed is probed again.
var retryDelays = backoff.Policy{Min: 100 * time.Millisecond, Max: 5 * time.Second}

// Prober probes the instances that Add queues. Make it with New, and call Run once.
type Prober struct {
	rand func() float64

	mu    sync.Mutex
	queue []attempt
	added chan struct{}
}

type attempt struct {
	upstream.Arrival

	failures int
}

// New returns a Prober. rand returns a number in [0, 1).
func New(rand func() float64) *Prober {
	return &Prober{rand: rand, added: make(chan struct{}, 1)}
}

// Add queues an instance for a probe. It does not block, and may be called before Run.
func (p *Prober) Add(a upstream.Arrival) { p.addAttempt(attempt{Arrival: a}) }

func (p *Prober) addAttempt(a attempt) {
	p.mu.Lock()
	p.queue = append(p.queue, a)
	p.mu.Unlock()
	select {
	case p.added <- struct{}{}:
	default:
	}
}

// takeAll returns all elements of the queue and empties it.
func (p *Prober) takeAll() []attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.queue
	p.queue = nil
	return all
}

// Run probes instances until ctx ends.
func (p *Prober) Run(ctx context.Context) error {
	var probes sync.WaitGroup
	defer probes.Wait()
	slots := make(chan struct{}, maxConcurrent)
	for {
		for _, a := range p.takeAll() {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case slots <- struct{}{}:
			}
			probes.Go(func() {
				release := sync.OnceFunc(func() { <-slots })
				timer := time.AfterFunc(connectTimeout, release)
				err := p.probeInstance(ctx, a)
				timer.Stop()
				release()
				if err == nil {
					return
				}
				if backoff.Sleep(ctx, retryDelays.Delay(a.failures, p.rand)) == nil && a.Wanted() {
					p.addAttempt(attempt{Arrival: a.Arrival, failures: a.failures + 1})
				}
			})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.added:
		}
	}
}

func (p *Prober) probeInstance(ctx context.Context, a attempt) error {
	if !a.Wanted() {
		return nil
	}
	conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "tcp", a.Address)
	if err != nil {
		if ctx.Err() == nil && !conns.Local(err) {
			a.Unreached()
		}
		return err
	}
	defer func() { _ = conn.Close() }() // no other goroutine uses it
	if check := a.Check(); check != nil {
		if err := check.Do(ctx, transportOver(conn), a.Address); err != nil {
			if ctx.Err() == nil && !conns.Local(err) {
				a.Failed(err.Error())
			}
			return err
		}
	}
	a.Reached()
	return nil
}

// transportOver returns a transport that sends the first request over conn. Requests that follow a
// redirect get new connections.
func transportOver(conn net.Conn) *http.Transport {
	first := true // needs no lock: the check sends one request after the other
	return &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if first {
				first = false
				return conn, nil
			}
			return (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, network, address)
		},
	}
}
