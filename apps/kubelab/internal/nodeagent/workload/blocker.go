package workload

import (
	"net"
	"sync"
)

// blocker holds up the bytes of a pod's connections while its node is lost.
type blocker struct {
	mu   sync.Mutex
	shut chan struct{} // nil while the blocker is open; closed when it opens
}

func (g *blocker) freeze(frozen bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case frozen && g.shut == nil:
		g.shut = make(chan struct{})
	case !frozen && g.shut != nil:
		close(g.shut)
		g.shut = nil
	}
}

// waitOpen waits until the blocker is open or done closes.
func (g *blocker) waitOpen(done <-chan struct{}) {
	for {
		g.mu.Lock()
		shut := g.shut
		g.mu.Unlock()
		if shut == nil {
			return
		}
		select {
		case <-shut:
		case <-done:
			return
		}
	}
}

// listener joins all listeners of one run. Its connections pass its blocker, and closeAll closes them.
type listener struct {
	blocker blocker
	inner   []net.Listener

	accepted chan net.Conn // nil with one inner listener, which Accept uses directly
	closed   chan struct{}

	mu    sync.Mutex
	conns map[*conn]struct{}
	done  bool
}

func newListener(inner []net.Listener) *listener {
	l := &listener{inner: inner, closed: make(chan struct{}), conns: map[*conn]struct{}{}}
	if len(inner) == 1 {
		return l
	}
	l.accepted = make(chan net.Conn)
	for _, one := range inner {
		go l.forwardConns(one)
	}
	return l
}

func (l *listener) forwardConns(one net.Listener) {
	for {
		c, err := one.Accept()
		if err != nil {
			return
		}
		select {
		case l.accepted <- c:
		case <-l.closed:
			_ = c.Close()
			return
		}
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	var c net.Conn
	if l.accepted == nil {
		var err error
		if c, err = l.inner[0].Accept(); err != nil {
			return nil, err
		}
	} else {
		select {
		case c = <-l.accepted:
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
	wrapped := &conn{Conn: c, listener: l, done: make(chan struct{})}
	l.mu.Lock()
	l.conns[wrapped] = struct{}{}
	l.mu.Unlock()
	return wrapped, nil
}

// Close implements net.Listener. It accepts no more connections, and keeps the open ones.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return nil
	}
	l.done = true
	close(l.closed)
	for _, one := range l.inner {
		_ = one.Close()
	}
	return nil
}

func (l *listener) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.done
}

// closeAll closes the listeners and their connections.
func (l *listener) closeAll() {
	_ = l.Close()
	l.mu.Lock()
	conns := l.conns
	l.conns = map[*conn]struct{}{}
	l.mu.Unlock()
	for c := range conns {
		_ = c.Close()
	}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.inner[0].Addr() }

type conn struct {
	net.Conn
	listener *listener
	once     sync.Once
	done     chan struct{}
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.listener.blocker.waitOpen(c.done)
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	c.listener.blocker.waitOpen(c.done)
	return c.Conn.Write(p)
}

func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.done)
		c.listener.mu.Lock()
		delete(c.listener.conns, c)
		c.listener.mu.Unlock()
	})
	return c.Conn.Close()
}
