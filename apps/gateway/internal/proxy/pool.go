package proxy

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/socket"
)

// pool keeps connections to instances that the short way uses: by address, the one that was
// used last first.
type pool struct {
	mu   sync.RWMutex
	idle map[string]*stack
}

type stack struct {
	mu    sync.Mutex
	conns []parked
	// gone: it is not the pool's any more.
	gone bool
}

type parked struct {
	conn  *socket.Conn
	since time.Time
}

// get a connection that was used before; nil: there is none.
func (p *pool) get(address string, now time.Time) *socket.Conn {
	p.mu.RLock()
	s := p.idle[address]
	p.mu.RUnlock()
	if s == nil {
		return nil
	}
	for {
		s.mu.Lock()
		if len(s.conns) == 0 {
			s.mu.Unlock()
			return nil
		}
		last := s.conns[len(s.conns)-1]
		s.conns[len(s.conns)-1] = parked{}
		s.conns = s.conns[:len(s.conns)-1]
		s.mu.Unlock()
		if now.Sub(last.since) < idleConnection {
			return last.conn
		}
		_ = last.conn.Close() // it is at its end either way
	}
}

// put back a connection whose answer has ended, at now.
func (p *pool) put(address string, conn *socket.Conn, now time.Time) {
	conn.Give(nil)
	for pushed := false; !pushed; {
		pushed = p.stack(address).push(parked{conn, now})
	}
}

func (p *pool) stack(address string) *stack {
	p.mu.RLock()
	s := p.idle[address]
	p.mu.RUnlock()
	if s != nil {
		return s
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s = p.idle[address]; s == nil {
		if p.idle == nil {
			p.idle = map[string]*stack{}
		}
		s = &stack{}
		p.idle[address] = s
	}
	return s
}

// push reports whether somebody will find it.
func (s *stack) push(c parked) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone:
		return false
	case len(s.conns) >= idlePerInstance:
		_ = c.conn.Close() // one too many
	default:
		s.conns = append(s.conns, c)
	}
	return true
}

// sweep closes connections that were idle for age, and drops addresses without connections.
func (p *pool) sweep(now time.Time, age time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, s := range p.idle {
		s.mu.Lock()
		old := 0
		for old < len(s.conns) && now.Sub(s.conns[old].since) >= age {
			_ = s.conns[old].conn.Close() // nothing is under way on it
			old++
		}
		s.conns = slices.Delete(s.conns, 0, old)
		if s.gone = len(s.conns) == 0; s.gone {
			delete(p.idle, address)
		}
		s.mu.Unlock()
	}
}

// shedAtOnce is how many connections of clients without a request are closed when this process has run
// out of something.
const shedAtOnce = 16

// relieve lets go of connections that are not in use.
func (p *Proxy) relieve() {
	p.pool.sweep(time.Now(), 0)
	p.transport.close()
	p.cfg.Conns.Shed(shedAtOnce)
}

// absolve takes out of what is counted the instance that was asked last, where the gateway could not ask it.
func (x *exchange) absolve() {
	if x.failure == failExhausted {
		x.deployment, x.instance, x.version = "", "", 0
	}
}

// connect to an instance.
func connect(ctx context.Context, address string, limit time.Duration) (*socket.Conn, error) {
	conn, err := (&net.Dialer{Timeout: limit, KeepAlive: 15 * time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, &dialError{err}
	}
	sock, err := socket.Open(conn)
	if err != nil {
		return nil, errors.Join(&dialError{err}, conn.Close())
	}
	return sock, nil
}
