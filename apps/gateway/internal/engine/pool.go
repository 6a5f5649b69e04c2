package engine

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine/epoll"
)

// Socket is a TCP connection that the engine reads and writes, to a client or to an instance.
type Socket = epoll.Conn

// Buffers is a pool of the buffers that sockets are read into.
type Buffers = epoll.Buffers

const (
	// IdleConnection is how long a connection may be idle. It is below 5 s, after which model servers
	// on uvicorn close an idle connection, because a request that is sent at that moment is lost.
	IdleConnection = 4 * time.Second
	// IdlePerInstance bounds the idle connections that are kept for one instance. Connections that
	// are not used end after IdleConnection.
	IdlePerInstance = 512
)

// Pool keeps idle connections to instances, by address. Get returns the connection that was used
// last. The zero value is empty.
type Pool struct {
	mu   sync.RWMutex
	idle map[string]*stack
}

type stack struct {
	mu    sync.Mutex
	conns []parked
	// gone: the pool has dropped the stack.
	gone bool
}

type parked struct {
	conn  *Socket
	since time.Time
}

// Get returns an idle connection to the address; nil if there is none.
func (p *Pool) Get(address string, now time.Time) *Socket {
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
		if now.Sub(last.since) < IdleConnection {
			return last.conn
		}
		_ = last.conn.Close() // an error changes nothing, because the connection is not used again
	}
}

// Put returns a connection to the pool. now is when its answer ended.
func (p *Pool) Put(address string, conn *Socket, now time.Time) {
	conn.Give(nil)
	for pushed := false; !pushed; {
		pushed = p.stackOf(address).pushConn(parked{conn, now})
	}
}

func (p *Pool) stackOf(address string) *stack {
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

// pushConn reports whether the stack took the connection or closed it. It returns false if the pool has
// dropped the stack.
func (s *stack) pushConn(c parked) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone:
		return false
	case len(s.conns) >= IdlePerInstance:
		_ = c.conn.Close() // the stack is full
	default:
		s.conns = append(s.conns, c)
	}
	return true
}

// Sweep closes connections that were idle for age, and drops addresses without connections.
func (p *Pool) Sweep(now time.Time, age time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, s := range p.idle {
		s.mu.Lock()
		old := 0
		for old < len(s.conns) && now.Sub(s.conns[old].since) >= age {
			_ = s.conns[old].conn.Close() // the connection has no request
			old++
		}
		s.conns = slices.Delete(s.conns, 0, old)
		if s.gone = len(s.conns) == 0; s.gone {
			delete(p.idle, address)
		}
		s.mu.Unlock()
	}
}

// dialInstance dials an instance. It may block, so only Conn.Dial calls it.
func dialInstance(ctx context.Context, address string, limit time.Duration) (*Socket, error) {
	conn, err := (&net.Dialer{Timeout: limit, KeepAlive: 15 * time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	sock, err := epoll.Open(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return sock, nil
}
