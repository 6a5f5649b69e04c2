package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine/epoll"
	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
	"github.com/windlass-run/windlass/pkg/conns"
)

// Conn is a client's connection. Only its task uses it, except for leaveIdle and Cut.
type Conn struct {
	*Socket

	// task serves the connection.
	task *epoll.Task

	// Scratch belongs to the handler. It is kept from one request to the next.
	Scratch any

	server *Server
	// entry is the connection's place in the table of connections. begun: entry counts a request.
	entry *conns.Entry
	begun bool
	// remote is the client's "host:port", and client is its host.
	remote, client string

	// buffer[begin:end] holds the bytes that were read and not used. nil: there are none.
	buffer     *[]byte
	begin, end int
	request    http1.Request

	state atomic.Int32
	// until is the deadline of reads; zero: none was set yet.
	until time.Time
}

// States of a Conn.
const (
	// waiting: no byte of the next request has come.
	waiting int32 = iota
	// reading: a request has begun. Whether it goes the short or the long way is not decided.
	reading
	// answering: the way of the request is decided.
	answering
	// left: leaveIdle closed the connection while it was waiting.
	left
)

// Remote is the client's "host:port".
func (c *Conn) Remote() string { return c.remote }

// Client is the host of Remote.
func (c *Conn) Client() string { return c.client }

// Blocking runs f, which may block, off the poller, because other connections wait for the poller. The
// task returns to the poller when it next waits for a connection.
func (c *Conn) Blocking(f func()) { c.task.Blocking(f) }

// Adopt lets the task of c read and write another socket, too.
func (c *Conn) Adopt(s *Socket) { s.Give(c.task) }

// Dial connects to an instance within limit.
func (c *Conn) Dial(ctx context.Context, address string, limit time.Duration) (s *Socket, err error) {
	c.Blocking(func() { s, err = dialInstance(ctx, address, limit) })
	return s, err
}

// Begin must be called by the handler when it decides to answer a request.
func (c *Conn) Begin() {
	if c.state.CompareAndSwap(reading, answering) {
		c.server.reading.Add(-1)
	}
	if !c.begun {
		c.begun = true
		c.entry.Begin()
	}
}

// endRequest ends a request that had begun.
func (c *Conn) endRequest() {
	if c.begun {
		c.begun = false
		c.entry.End()
	}
}

func (c *Conn) serveRequests(ctx context.Context, t *epoll.Task) {
	s := c.server
	c.task = t
	c.Give(t)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	passed := false
	defer func() {
		if e := recover(); e != nil {
			stack := string(debug.Stack())
			c.Blocking(func() {
				s.cfg.Log.ErrorContext(ctx, "a request failed badly: its connection is cut", "error", e, "stack", stack)
			})
		}
		c.Unwatch()
		c.noteDecided()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		c.endRequest()
		if !passed {
			_ = c.Close() // an error changes nothing, because the connection ends here
			s.open.Add(-1)
			c.entry.Done()
		}
	}()
	for limit := s.cfg.Header; c.awaitRequest(limit); limit = s.cfg.Idle {
		outcome := c.serveNext(ctx)
		c.endRequest()
		if outcome == Other {
			c.Unwatch()
			passed = c.passToOthers()
		}
		// noteDecided comes after passToOthers: once Undecided is 0, the gateway shuts down the server
		// that takes the passed connections.
		c.noteDecided()
		switch outcome {
		case Next:
			continue
		case End:
			c.lingerUntilClosed()
		case Cut, Other:
		}
		return
	}
}

// noteDecided records that the request has ended or goes the long way.
func (c *Conn) noteDecided() {
	if c.state.Swap(answering) == reading {
		c.server.reading.Add(-1)
	}
}

// awaitRequest waits for the first byte of a request. It returns false if no byte comes.
func (c *Conn) awaitRequest(limit time.Duration) bool {
	if c.begin < c.end {
		c.server.reading.Add(1)
		c.state.Store(reading)
		return true
	}
	if c.buffer != nil {
		c.server.buffers.Put(c.buffer)
		c.buffer = nil
	}
	c.state.Store(waiting)
	if c.server.leaving.Load() { // Leave may have checked c before its state was waiting
		return false
	}
	// Setting a deadline costs as much as a system call, so it is not set for each request.
	if now := time.Now(); c.until.Sub(now) < limit*3/4 || c.until.Sub(now) > limit {
		if c.until = now.Add(limit); c.SetReadDeadline(c.until) != nil {
			return false
		}
	}
	buffer, n, err := c.ReadInto(&c.server.buffers)
	if err != nil {
		return false
	}
	c.buffer, c.begin, c.end = buffer, 0, n
	c.server.reading.Add(1)
	if !c.state.CompareAndSwap(waiting, reading) {
		c.server.reading.Add(-1)
		return false // leaveIdle has closed the connection
	}
	return true
}

// leaveIdle ends the connection if it waits for a request.
func (c *Conn) leaveIdle() {
	if c.state.CompareAndSwap(waiting, left) {
		c.Cut() // which ends the wait
	}
}

// serveNext reads a request and passes it to the handler.
func (c *Conn) serveNext(ctx context.Context) Outcome {
	var n int
	var late time.Time
	for searched := 0; ; {
		// Parse only after a new line end. So a header of few lines is parsed few times, even if it arrives
		// in small parts.
		message, verdict := (*c.buffer)[c.begin:c.end], http1.More
		if bytes.IndexByte(message[searched:], '\n') >= 0 {
			n, verdict = http1.ParseRequest(message, &c.request)
		}
		if verdict == http1.Whole {
			break
		}
		searched = len(message)
		if verdict == http1.Other || c.end-c.begin == len(*c.buffer) {
			return Other
		}
		c.growRoom(len(*c.buffer))
		if err := c.readMore(&late); err != nil {
			return c.lateOutcome(err)
		}
	}
	r := &c.request
	if n > c.server.cfg.MaxHeader || r.ContentLength > c.server.cfg.MaxBody {
		return Other
	}
	whole := n + int(r.ContentLength)
	if c.end-c.begin < whole {
		c.growRoom(whole)
		for c.end-c.begin < whole {
			if err := c.readMore(&late); err != nil {
				return c.lateOutcome(err)
			}
		}
		http1.ParseRequest((*c.buffer)[c.begin:c.end], r) // again, because the bytes have moved
	}
	message := (*c.buffer)[c.begin : c.begin+whole]
	outcome := c.server.cfg.Handler.Handle(ctx, c, r, message[n:])
	if outcome == Next {
		c.begin += whole
	}
	return outcome
}

// growRoom makes room in the buffer for a message of whole bytes that starts at begin.
func (c *Conn) growRoom(whole int) {
	if c.begin+whole <= len(*c.buffer) {
		return
	}
	if whole <= len(*c.buffer) {
		c.end = copy(*c.buffer, (*c.buffer)[c.begin:c.end])
	} else {
		larger := make([]byte, whole)
		c.end = copy(larger, (*c.buffer)[c.begin:c.end])
		c.server.buffers.Put(c.buffer)
		c.buffer = &larger
	}
	c.begin = 0
}

// readMore reads the next part of a request that has begun. The whole request must arrive before late.
// readMore sets late if it is zero.
func (c *Conn) readMore(late *time.Time) error {
	if late.IsZero() {
		*late = time.Now().Add(arrives)
		if c.until = *late; c.SetReadDeadline(c.until) != nil {
			return net.ErrClosed
		}
	}
	n, err := c.Read((*c.buffer)[c.end:])
	c.end += n
	return err
}

// lateOutcome returns the outcome of a request whose rest did not arrive.
func (c *Conn) lateOutcome(err error) Outcome {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
		return Other // net/http answers with the right error
	}
	return Cut
}

// passToOthers hands the connection to net/http, with the bytes that were read.
func (c *Conn) passToOthers() bool {
	conn, err := c.Release()
	if err != nil {
		return false
	}
	before := append([]byte(nil), (*c.buffer)[c.begin:c.end]...)
	c.server.buffers.Put(c.buffer)
	c.buffer = nil
	c.Blocking(func() { c.server.passToOthers(conn, before, c.entry) }) // until Others takes it
	return true
}

// lingerUntilClosed closes the sending direction after the last answer. Then it reads from the connection until
// the client has closed its side, for linger at most.
func (c *Conn) lingerUntilClosed() {
	c.Unwatch()
	if c.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(linger)) != nil {
		return
	}
	for {
		if _, err := c.Read(*c.buffer); err != nil {
			return
		}
	}
}
