package rpc

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// keeper finds HTTP/2 connections whose other end is gone, with one timer for all connections of a server.
// net/http has a timer for each connection, and the wake-ups of many timers are the main cost of an idle
// process. Pings that are sent together need one wake-up.
//
// It pings below net/http, between two frames, so it follows the frames that net/http writes. The answer
// passes net/http, which ignores answers to pings that it did not send. It cannot follow connections with
// TLS, so net/http pings those.
type keeper struct {
	mu    sync.Mutex
	conns map[*keptConn]struct{}
}

// sweepEvery is the time between sweeps, and so how late a ping may be: a tenth of pingAfter. All pings of a
// sweep share one wake-up.
const sweepEvery = 500 * time.Millisecond

func newKeeper() *keeper { return &keeper{conns: map[*keptConn]struct{}{}} }

// sweepUntil sweeps until ctx ends.
func (k *keeper) sweepUntil(ctx context.Context) {
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			k.pingAndClose(time.Now())
		}
	}
}

// pingAndClose pings connections that were silent for pingAfter, and closes those that did not answer for
// pingTimeout.
func (k *keeper) pingAndClose(now time.Time) {
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
				// Close may block on unsent data if the connection lingers.
				go c.Conn.Close()
			}
		case now.UnixNano()-heard >= int64(pingAfter):
			c.asked = now.UnixNano()
			// A peer that does not read blocks only its own ping.
			go c.sendPing()
		}
	}
}

// keptListener adds the connections that it accepts to its keeper.
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
	// preface is the beginning of an HTTP/2 connection. HTTP/1 begins with a method instead.
	preface      = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHeader  = 9
	pingFrame    = 0x6
	pingDataSize = 8
)

// question is a PING on stream 0. Its data is not unique, because any received byte counts as an answer.
var question = [frameHeader + pingDataSize]byte{2: pingDataSize, 3: pingFrame}

// NetConn returns the connection below, by which conns.Context finds its entry.
func (c *keptConn) NetConn() net.Conn { return c.Conn }

type keptConn struct {
	net.Conn
	keeper *keeper

	// heard is when the last byte came, and asked is when the last ping was due, in Unix ns. Only sweep uses
	// asked.
	heard atomic.Int64
	asked int64
	// http2 is whether the client began with the preface. prefaced is how many of its bytes came, and -1 for
	// another protocol. Only the reader uses prefaced.
	http2    atomic.Bool
	prefaced int

	writing sync.Mutex
	out     frames
	wanted  bool // whether to ping when the current frame ends
}

func (c *keptConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Store(time.Now().UnixNano())
		c.matchPreface(p[:n])
	}
	return n, err
}

// matchPreface compares the first bytes of the connection with the preface.
func (c *keptConn) matchPreface(p []byte) {
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

// Write follows the frames from the first one on, which may be written before the preface is complete. On
// HTTP/1.1 the result is not used.
func (c *keptConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n, err := c.Conn.Write(p)
	c.out.passBytes(p[:n])
	if err == nil && c.wanted {
		// If it fails, the next write will fail, too.
		_ = c.askLocked()
	}
	return n, err
}

// sendPing pings now, or as soon as the frame that is being written ends.
func (c *keptConn) sendPing() {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.wanted = true
	_ = c.askLocked() // a connection that fails here is closed later, because it is silent
}

// askLocked writes the wanted ping if no frame is half written. c.writing must be held.
func (c *keptConn) askLocked() error {
	if !c.out.isBetweenFrames() {
		return nil
	}
	c.wanted = false
	n, err := c.Conn.Write(question[:])
	c.out.passBytes(question[:n])
	return err
}

// Close removes the connection from its keeper, and closes it.
func (c *keptConn) Close() error {
	c.keeper.mu.Lock()
	delete(c.keeper.conns, c)
	c.keeper.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite is called by net/http, so that clients of HTTP/1.1 can read the end of an answer before the
// connection is closed.
func (c *keptConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// frames finds where frames begin and end in the written bytes.
type frames struct {
	header [frameHeader]byte
	have   int // bytes of the header
	rest   int // of the payload
}

// isBetweenFrames reports whether no frame is half written.
func (f *frames) isBetweenFrames() bool { return f.have == 0 && f.rest == 0 }

func (f *frames) passBytes(p []byte) {
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
