// Package prober finds out whether the instances that the region's agent calls ready can be
// reached from where the gateway is, before anybody counts on them. The agent's check asks
// whether an instance is well; between it and the gateway there may be another network, and
// something on it that answers in the instance's place.
//
// What is tried is a connection and, on it, the deployment's own health check, if the gateway
// is told one. One that does not pass is tried again, ever more seldom, for as long as it is
// called ready; one that has passed is not asked again: how it is from then on is the agent's
// business, and traffic's. What is found is the instance's state as traffic would have found it.
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
	// timeout of a connection, as of those for requests.
	timeout = 2 * time.Second
	// atOnce bounds the tries that are being made. One that takes longer than a connection may
	// does not count any more: it waits for an answer, for as long as the check allows, and
	// others are not to wait for that.
	atOnce = 64
)

// again is when one that was not reached is tried again.
var again = backoff.Policy{Min: 100 * time.Millisecond, Max: 5 * time.Second}

// Prober tries what Add is given. Make it with New, run it once.
type Prober struct {
	rand func() float64

	mu    sync.Mutex
	queue []attempt
	more  chan struct{}
}

type attempt struct {
	upstream.Arrival

	failures int
}

// New returns a Prober; rand draws from [0, 1).
func New(rand func() float64) *Prober {
	return &Prober{rand: rand, more: make(chan struct{}, 1)}
}

// Add has an instance tried. It does not block, and may be called before Run.
func (p *Prober) Add(a upstream.Arrival) { p.add(attempt{Arrival: a}) }

func (p *Prober) add(a attempt) {
	p.mu.Lock()
	p.queue = append(p.queue, a)
	p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *Prober) take() []attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.queue
	p.queue = nil
	return all
}

// Run tries until ctx ends.
func (p *Prober) Run(ctx context.Context) error {
	var tries sync.WaitGroup
	defer tries.Wait()
	slots := make(chan struct{}, atOnce)
	for {
		for _, a := range p.take() {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case slots <- struct{}{}:
			}
			tries.Go(func() {
				done := sync.OnceFunc(func() { <-slots })
				slow := time.AfterFunc(timeout, done)
				err := p.try(ctx, a)
				slow.Stop()
				done()
				if err == nil {
					return
				}
				if backoff.Sleep(ctx, again.Delay(a.failures, p.rand)) == nil && a.Wanted() {
					p.add(attempt{Arrival: a.Arrival, failures: a.failures + 1})
				}
			})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.more:
		}
	}
}

func (p *Prober) try(ctx context.Context, a attempt) error {
	if !a.Wanted() {
		return nil
	}
	conn, err := (&net.Dialer{Timeout: timeout}).DialContext(ctx, "tcp", a.Address)
	if err != nil {
		if ctx.Err() == nil && !conns.Local(err) {
			a.Unreached()
		}
		return err
	}
	defer func() { _ = conn.Close() }() // no other goroutine uses it
	if check := a.Check(); check != nil {
		if err := check.Do(ctx, once(conn), a.Address); err != nil {
			if ctx.Err() == nil && !conns.Local(err) {
				a.Failed(err.Error())
			}
			return err
		}
	}
	a.Reached()
	return nil
}

// once has the first request go by the connection, which is there, and those that it is redirected
// to by others.
func once(conn net.Conn) *http.Transport {
	first := true // requests follow each other
	return &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if first {
				first = false
				return conn, nil
			}
			return (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, address)
		},
	}
}
