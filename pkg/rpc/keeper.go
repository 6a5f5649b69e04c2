package rpc

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// keeper pings silent HTTP/2 connections, and closes connections whose peer does not answer. It has one timer for
// all connections of a server. net/http has a timer for each connection, and the wake-ups of many timers are the
// main cost of an idle process.
//
// A keeper writes pings to the connection without net/http. A ping must not interrupt a frame of net/http, so
// keptConn follows the frames. net/http also reads the answer, and ignores it, because it did not send the ping.
// The frames of connections with TLS are encrypted, so net/http pings these connections.
type keeper struct {
	mu    sync.Mutex
	conns map[*keptConn]struct{}
}

// sweepEvery is the time between sweeps. A ping may be late by this time, which is a tenth of pingAfter.
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

// pingAndClose pings connections that were silent for pingAfter, and closes connections without an answer for
// pingTimeout.
func (k *keeper) pingAndClose(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.conns {
		if !c.http2.Load() {
			continue
		}
		lastRead := c.lastRead.Load()
		switch {
		case c.lastPing > lastRead:
			if now.UnixNano()-c.lastPing >= int64(pingTimeout) {
				delete(k.conns, c)
				// Close may block on unsent data if the connection lingers.
				go c.Conn.Close()
			}
		case now.UnixNano()-lastRead >= int64(pingAfter):
			c.lastPing = now.UnixNano()
			// The write blocks if the peer does not read. It must not delay pings of other connections.
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
	c.lastRead.Store(time.Now().UnixNano())
	l.keeper.mu.Lock()
	l.keeper.conns[c] = struct{}{}
	l.keeper.mu.Unlock()
	return c, nil
}

const (
	// preface is the beginning of an HTTP/2 connection. HTTP/1 begins with a method instead.
	preface       = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	frameHeader   = 9
	pingFrameType = 0x6
	pingDataSize  = 8
)

// pingFrame is a PING frame on stream 0. Its data is not unique, because any received byte counts as an answer.
var pingFrame = [frameHeader + pingDataSize]byte{2: pingDataSize, 3: pingFrameType}

// keptConn is a connection that a keeper pings.
type keptConn struct {
	net.Conn
	keeper *keeper

	// lastRead is when the last byte was read, and lastPing is when the last ping was due, in Unix ns. Only
	// pingAndClose uses lastPing.
	lastRead atomic.Int64
	lastPing int64
	// http2 reports whether the client began with the preface. prefaced is the number of bytes of the preface
	// that were read, or -1 for another protocol. Only Read uses prefaced.
	http2    atomic.Bool
	prefaced int

	writing   sync.Mutex
	written   frameTracker
	wantsPing bool // reports whether to ping when the current frame ends
}

// NetConn returns the wrapped connection. conns.Context uses it to find the entry.
func (c *keptConn) NetConn() net.Conn { return c.Conn }

func (c *keptConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.lastRead.Store(time.Now().UnixNano())
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

// Write follows frames from the first byte on, because the server may write before it has read the whole preface.
// For HTTP/1.1, written has no meaning and is not used.
func (c *keptConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n, err := c.Conn.Write(p)
	c.written.addWritten(p[:n])
	if err == nil && c.wantsPing {
		// If this write fails, the next write fails, too.
		_ = c.writePingLocked()
	}
	return n, err
}

// sendPing pings now, or after the frame that is being written.
func (c *keptConn) sendPing() {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.wantsPing = true
	_ = c.writePingLocked() // if it fails, the connection stays silent and is closed later
}

// writePingLocked writes the wanted ping, unless a frame is half written. c.writing must be held.
func (c *keptConn) writePingLocked() error {
	if !c.written.isBetweenFrames() {
		return nil
	}
	c.wantsPing = false
	n, err := c.Conn.Write(pingFrame[:])
	c.written.addWritten(pingFrame[:n])
	return err
}

// Close removes the connection from its keeper, and closes it.
func (c *keptConn) Close() error {
	c.keeper.mu.Lock()
	delete(c.keeper.conns, c)
	c.keeper.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes the write direction. net/http calls it, so that clients of HTTP/1.1 can read the end of an answer
// before the connection is closed.
func (c *keptConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// frameTracker finds the ends of frames in the written bytes.
type frameTracker struct {
	header      [frameHeader]byte
	headerBytes int // number of bytes in header
	payloadLeft int // number of bytes of the payload that are still to come
}

// isBetweenFrames reports whether the last frame is written completely.
func (f *frameTracker) isBetweenFrames() bool { return f.headerBytes == 0 && f.payloadLeft == 0 }

// addWritten must be called with all written bytes, in their order.
func (f *frameTracker) addWritten(p []byte) {
	for len(p) > 0 {
		if f.payloadLeft > 0 {
			n := min(f.payloadLeft, len(p))
			f.payloadLeft -= n
			p = p[n:]
			continue
		}
		n := copy(f.header[f.headerBytes:], p)
		f.headerBytes += n
		p = p[n:]
		if f.headerBytes == frameHeader {
			f.headerBytes = 0
			f.payloadLeft = int(binary.BigEndian.Uint32(f.header[:4]) >> 8) // the length has 24 bits
		}
	}
}
