package engine

import (
	"net"
	"sync"
	"sync/atomic"

	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/strict"
)

// Passed is a connection that goes the long way.
type Passed struct {
	net.Conn

	// before has the bytes that were read from the connection before.
	before []byte
	// reader checks the bytes that net/http reads.
	reader   strict.Reader
	server   *Server
	entry    *conns.Entry
	released atomic.Bool
}

// Release removes the connection from the server's count.
func (p *Passed) Release() {
	if p.released.CompareAndSwap(false, true) {
		p.server.open.Add(-1)
	}
}

// Entry is the connection's place in the table of connections.
func (p *Passed) Entry() *conns.Entry { return p.entry }

// Close implements net.Conn.
func (p *Passed) Close() error {
	p.entry.Done()
	return p.Conn.Close()
}

func (p *Passed) Read(b []byte) (int, error) { return p.reader.Read(readerFunc(p.readPassed), b) }

// Hijacked is called when the connection's protocol was switched.
func (p *Passed) Hijacked() { p.reader.Stop() }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func (p *Passed) readPassed(b []byte) (int, error) {
	if len(p.before) > 0 {
		n := copy(b, p.before)
		if p.before = p.before[n:]; len(p.before) == 0 {
			p.before = nil
		}
		return n, nil
	}
	return p.Conn.Read(b)
}

// CloseWrite closes the sending direction. net/http calls it before it closes a connection, and a proxy
// calls it for an upgraded connection.
func (p *Passed) CloseWrite() error {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// others is a listener whose connections come from pushPassed.
type others struct {
	once  sync.Once
	ended chan struct{}
	queue chan *Passed
}

func newOthers() *others {
	return &others{ended: make(chan struct{}), queue: make(chan *Passed)}
}

// pushPassed waits until Accept takes p. It returns false once the listener is closed.
func (o *others) pushPassed(p *Passed) bool {
	select {
	case o.queue <- p:
		return true
	case <-o.ended:
		return false
	}
}

// Accept implements net.Listener.
func (o *others) Accept() (net.Conn, error) {
	select {
	case p := <-o.queue:
		return p, nil
	case <-o.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (o *others) Close() error {
	o.once.Do(func() { close(o.ended) })
	return nil
}

// Addr implements net.Listener. No client can connect to it.
func (o *others) Addr() net.Addr { return &net.UnixAddr{Name: "others", Net: "unix"} }
