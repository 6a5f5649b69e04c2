package strict

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"slices"
	"time"

	"github.com/windlass-run/windlass/pkg/conns"
)

// inTurn is a connection that makes a TLS handshake. The handshake has a slot of the table of connections while it
// computes, and no slot while it waits for the client.
type inTurn struct {
	net.Conn

	ctx context.Context //nolint:containedctx // Read has no context parameter
	// first has the bytes that were read before the handshake began, and that the handshake has not read yet.
	first []byte
	// turn is nil without a table, and after the handshake.
	turn *conns.Handshake
	// refused means that the handshake got no turn.
	refused bool
}

const (
	recordHeader = 5
	// typeHandshake is the type of a record with a handshake message, such as a ClientHello.
	typeHandshake = 22
	// maxRecord is the longest record without encryption. A longer record is not TLS.
	maxRecord = 16 << 10
)

// InTurn waits for a turn in raw's table of connections (see conns.Entry.BeginHandshake), and calls handshake, which
// makes the TLS handshake. Without a table, it does not wait. handshake should use its argument instead of raw, also
// after the handshake. ctx must have a deadline. refused reports whether the connection got no turn. The table counts
// refused connections.
func InTurn(ctx context.Context, raw net.Conn, handshake func(net.Conn) error) (refused bool, err error) {
	c := &inTurn{Conn: raw, ctx: ctx}
	defer c.endHandshake()
	if err := c.begin(ctx); err != nil {
		return c.refused, err
	}
	return false, handshake(c)
}

// begin reads the client's first record, and waits for the handshake's turn. It leaves half of the time until ctx's
// deadline for the handshake itself.
func (c *inTurn) begin(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Conn.Close() }) // ends reads
	defer stop()
	if err := c.readFirst(recordHeader); err != nil {
		return err
	}
	length := binary.BigEndian.Uint16(c.first[recordHeader-2:])
	if c.first[0] != typeHandshake || length > maxRecord {
		return nil // crypto/tls refuses the record, and computes nothing
	}
	if err := c.readFirst(recordHeader + int(length)); err != nil {
		return err
	}
	entry := conns.EntryOf(conns.Context(ctx, c.Conn))
	end, _ := ctx.Deadline() // InTurn requires a deadline
	now := time.Now()
	var err error
	c.turn, err = entry.BeginHandshake(ctx, now.Add(end.Sub(now)/2))
	c.refused = err != nil
	return err
}

// readFirst reads until first has at least n bytes. The buffer grows only as bytes arrive.
func (c *inTurn) readFirst(n int) error {
	for len(c.first) < n {
		c.first = slices.Grow(c.first, 1<<10)
		got, err := c.Conn.Read(c.first[len(c.first):cap(c.first)])
		c.first = c.first[:len(c.first)+got]
		switch {
		case err == nil || len(c.first) >= n:
		case c.ctx.Err() != nil:
			return context.Cause(c.ctx)
		default:
			return err
		}
	}
	return nil
}

// endHandshake ends the handshake. From then on, the connection only reads and writes.
func (c *inTurn) endHandshake() {
	c.turn.Pause()
	c.turn, c.ctx = nil, nil
}

// Read implements net.Conn. The handshake gets a slot again once the client has sent something.
func (c *inTurn) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		if c.first = c.first[n:]; len(c.first) == 0 {
			c.first = nil
		}
		return n, nil
	}
	c.turn.Pause()
	n, err := c.Conn.Read(p)
	if err == nil {
		err = c.turn.Resume(c.ctx)
	}
	return n, err
}

// Write implements net.Conn. A handshake computes nothing between its writes and the next read.
func (c *inTurn) Write(p []byte) (int, error) {
	c.turn.Pause()
	return c.Conn.Write(p)
}

// NetConn returns the connection below.
func (c *inTurn) NetConn() net.Conn { return c.Conn }

// getPaused calls get without a slot, because get may wait, for example for an ACME server.
func getPaused(hello *tls.ClientHelloInfo, get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) (*tls.Certificate, error) {
	c, ok := hello.Conn.(*inTurn)
	if !ok {
		return get(hello)
	}
	c.turn.Pause()
	cert, err := get(hello)
	if err == nil {
		err = c.turn.Resume(c.ctx)
	}
	return cert, err
}
