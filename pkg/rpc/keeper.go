package rpc

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// keeper finds connections of HTTP/2 whose other end is gone, all of a server with one
// timer. net/http has a timer for each, and a process that rests pays for waking up, not
// for what it does then: 1,000 silent connections cost 8 % of a core when both ends have
// timers, and 5 % when only the clients' pings have to be answered, each by itself. Asked
// together, in one wake-up, they cost 0.7 %, and their answers need none in return.
//
// It pings below net/http, between two of its frames, which it therefore follows. The
// answer passes net/http, which disregards an answer to what it did not ask. Connections
// with TLS cannot be followed here; net/http pings those.
type keeper struct {
	mu    sync.Mutex
	conns map[*keptConn]struct{}
}

// sweepEvery is how late a ping may be: a tenth of the silence that it ends. Twice a
// second is nothing, and the pings of each time have one wake-up together.
const sweepEvery = 500 * time.Millisecond

func newKeeper() *keeper { return &keeper{conns: map[*keptConn]struct{}{}} }

// run sweeps until ctx ends.
func (k *keeper) run(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			k.sweep(time.Now())
		}
	}
}

// sweep asks who has been silent for pingAfter, and closes who did not answer for
// pingTimeout.
func (k *keeper) sweep(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		if !c.http2.Load() {
			continue
		}
		heard := c.heard.Load()
		switch {
		case c.asked > heard:
			if now.UnixNano()-c.asked >= int64(pingTimeout) {
				delete(k.conns, c)
				// What waits to be written would hold up a closing with linger.
				go c.Conn.Close()
			}
		case now.UnixNano()-heard >= int64(pingAfter):
			c.asked = now.UnixNano()
			// A peer that takes nothing holds up its own ping alone.
			go c.ping()
		}
	}
}

// keptListener has its connections looked after.
type keptListener struct {
	net.Listener
	keeper *keeper
}

func (l keptListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &keptConn{Conn: conn, keeper: l.keeper}
	c.heard.Store(time.Now().UnixNano())
	l.keeper.mu.Lock()
	l.keeper.conns[c] = struct{}{}
	l.keeper.mu.Unlock()
	return c, nil
}

const (
	// preface is how a client begins HTTP/2. That of HTTP/1 begins with a method.
	preface      = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHeader  = 9
	pingFrame    = 0x6
	pingDataSize = 8
)

// question is a PING of connection-wide stream 0; its data need not tell it from others,
// since any sign of life is an answer.
var question = [frameHeader + pingDataSize]byte{2: pingDataSize, 3: pingFrame}

// NetConn is the connection below, by which conns.Context finds its entry.
func (c *keptConn) NetConn() net.Conn { return c.Conn }

type keptConn struct {
	net.Conn
	keeper *keeper

	// heard is when the last byte came, unix ns; asked is when the last ping was due, and
	// the sweep's.
	heard atomic.Int64
	asked int64
	// http2: the client began with the preface. prefaced counts what of it came; only the
	// reader uses it.
	http2    atomic.Bool
	prefaced int

	writing sync.Mutex
	out     frames
	wanted  bool // a ping, as soon as a frame ends
}

func (c *keptConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Store(time.Now().UnixNano())
		c.begin(p[:n])
	}
	return n, err
}

// begin follows the preface.
func (c *keptConn) begin(p []byte) {
	if c.prefaced < 0 || c.prefaced == len(preface) {
		return
	}
	n := min(len(p), len(preface)-c.prefaced)
	if string(p[:n]) != preface[c.prefaced:c.prefaced+n] {
		c.prefaced = -1
		return
	}
	if c.prefaced += n; c.prefaced == len(preface) {
		c.http2.Store(true)
	}
}

// Write follows the frames from the first on, which may be written before the preface is
// complete. HTTP/1.1 has no frames, and no end of one is looked for.
func (c *keptConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n, err := c.Conn.Write(p)
	c.out.pass(p[:n])
	if err == nil && c.wanted {
		// Should it fail, so will what is written next.
		_ = c.askLocked()
	}
	return n, err
}

// ping as soon as no frame is half written.
func (c *keptConn) ping() {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.wanted = true
	_ = c.askLocked() // a connection that takes no byte is closed for its silence
}

// askLocked writes the ping that is wanted, between frames. c.writing is held.
func (c *keptConn) askLocked() error {
	if !c.out.between() {
		return nil
	}
	c.wanted = false
	n, err := c.Conn.Write(question[:])
	c.out.pass(question[:n])
	return err
}

// Close takes the connection from its keeper.
func (c *keptConn) Close() error {
	c.keeper.mu.Lock()
	delete(c.keeper.conns, c)
	c.keeper.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite is found by net/http, which lets clients of HTTP/1.1 read the end of an
// answer before it closes.
func (c *keptConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// frames follows where the frames of what is written begin and end.
type frames struct {
	header [frameHeader]byte
	have   int // bytes of the header
	rest   int // of the payload
}

// between tells that a frame may begin.
func (f *frames) between() bool { return f.have == 0 && f.rest == 0 }

func (f *frames) pass(p []byte) {
	for len(p) > 0 {
		if f.rest > 0 {
			n := min(f.rest, len(p))
			f.rest -= n
			p = p[n:]
			continue
		}
		n := copy(f.header[f.have:], p)
		f.have += n
		p = p[n:]
		if f.have == frameHeader {
			f.have = 0
			f.rest = int(binary.BigEndian.Uint32(f.header[:4]) >> 8) // the length has 24 bits
		}
	}
}
