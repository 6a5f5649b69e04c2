package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/stack"
)

// Balancer is a TCP load balancer in front of the replicas of the control plane. Each new connection goes to
// the next replica that accepts it. As with a service of several replicas, agents and users see one address,
// and not which replica answers.
type Balancer struct {
	listener net.Listener
	backends []string
	next     atomic.Uint32
	open     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	done  bool
}

// dialTimeout bounds the dial of a backend. A backend that is down refuses at once.
const dialTimeout = time.Second

// NewBalancer returns a balancer that listens on a free port, in front of the replicas of s.
func NewBalancer(ctx context.Context, s *stack.Stack) (*Balancer, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("balancer: %w", err)
	}
	b := &Balancer{listener: listener, conns: map[net.Conn]struct{}{}}
	for _, p := range s.Planes() {
		b.backends = append(b.backends, strings.TrimPrefix(p.URL, "http://"))
	}
	b.open.Go(func() {
		for {
			client, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				b.open.Go(func() { b.joinBackend(client) })
			}
		}
	})
	return b, nil
}

// Address returns the host:port of the balancer.
func (b *Balancer) Address() string { return b.listener.Addr().String() }

func (b *Balancer) joinBackend(client net.Conn) {
	if !b.trackConn(client) {
		return
	}
	defer b.forgetConn(client)
	for range b.backends {
		backend, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(context.Background(), "tcp", b.backends[int(b.next.Add(1))%len(b.backends)])
		if err != nil {
			continue
		}
		if !b.trackConn(backend) {
			return
		}
		defer b.forgetConn(backend) //nolint:revive,gocritic // the loop ends with the first that answers
		var ways sync.WaitGroup
		pipe := func(to, from net.Conn) {
			_, _ = io.Copy(to, from)
			_, _ = to.Close(), from.Close()
		}
		ways.Go(func() { pipe(backend, client) })
		ways.Go(func() { pipe(client, backend) })
		ways.Wait()
		return
	}
}

func (b *Balancer) trackConn(c net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		_ = c.Close()
		return false
	}
	b.conns[c] = struct{}{}
	return true
}

func (b *Balancer) forgetConn(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
	_ = c.Close()
}

// Close ends every connection.
func (b *Balancer) Close() {
	_ = b.listener.Close()
	b.mu.Lock()
	b.done = true
	for c := range b.conns {
		_ = c.Close()
	}
	b.mu.Unlock()
	b.open.Wait()
}
