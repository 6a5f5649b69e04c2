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

// Conn is a client's connection. It is its task's alone, but for leave.
type Conn struct {
	*Socket

	// task serves it.
	task *epoll.Task

	// Scratch is the handler's, from one request to the next.
	Scratch any

	server *Server
	// entry is its place among those that there may be; begun: it has a request there.
	entry *conns.Entry
	begun bool
	// remote is "host:port", client its host.
	remote, client string

	// buffer holds what was read from begin to end and not used; nil: nothing was.
	buffer     *[]byte
	begin, end int
	request    http1.Request

	state atomic.Int32
	// until is when the deadline of reads is; zero: there was none yet.
	until time.Time
}

// States of a Conn.
const (
	// waiting for a request.
	waiting int32 = iota
	// reading one, which may go either way.
	reading
	// answering it.
	answering
	// left: it was waiting, and is closed.
	left
)

// Remote is the client's "host:port"; Client is its host.
func (c *Conn) Remote() string { return c.remote }

// Client is the host of Remote.
func (c *Conn) Client() string { return c.client }

// Blocking runs f, which may block, off the poller, because other connections wait for the poller. What
// comes after f stays off it until the task waits for a connection next.
func (c *Conn) Blocking(f func()) { c.task.Blocking(f) }

// Adopt makes the task of c the one that reads and writes another socket, too.
func (c *Conn) Adopt(s *Socket) { s.Give(c.task) }

// Dial connects to an instance within limit.
func (c *Conn) Dial(ctx context.Context, address string, limit time.Duration) (s *Socket, err error) {
	c.Blocking(func() { s, err = dial(ctx, address, limit) })
	return s, err
}

// Begin is called when a request is the handler's to answer.
func (c *Conn) Begin() {
	if c.state.CompareAndSwap(reading, answering) {
		c.server.reading.Add(-1)
	}
	if !c.begun {
		c.begun = true
		c.entry.Begin()
	}
}

// end of a request that had begun.
func (c *Conn) ended() {
	if c.begun {
		c.begun = false
		c.entry.End()
	}
}

func (c *Conn) serve(ctx context.Context, t *epoll.Task) {
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
		c.decided()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		c.ended()
		if !passed {
			_ = c.Close() // it is at its end either way
			s.open.Add(-1)
			c.entry.Done()
		}
	}()
	for limit := s.cfg.Header; c.wait(limit); limit = s.cfg.Idle {
		outcome := c.next(ctx)
		c.ended()
		if outcome == Other {
			c.Unwatch()
			passed = c.pass()
		}
		// Not before pass: once Undecided is 0, the gateway shuts down the server that takes
		// what is passed.
		c.decided()
		switch outcome {
		case Next:
			continue
		case End:
			c.linger()
		case Cut, Other:
		}
		return
	}
}

// decided: the request is at its end, or goes the long way.
func (c *Conn) decided() {
	if c.state.Swap(answering) == reading {
		c.server.reading.Add(-1)
	}
}

// wait for the first byte of a request; false: none comes.
func (c *Conn) wait(limit time.Duration) bool {
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
	if c.server.leaving.Load() { // and may have looked before we waited
		return false
	}
	// Setting a deadline costs as much as a call to the system: not for each request.
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
		return false // we have left
	}
	return true
}

// leave ends a connection that waits.
func (c *Conn) leave() {
	if c.state.CompareAndSwap(waiting, left) {
		c.Cut() // which ends the wait
	}
}

// next reads a request and has it answered.
func (c *Conn) next(ctx context.Context) Outcome {
	var n int
	var late time.Time
	for searched := 0; ; {
		// Nothing is known of a line before its end. A header of few lines is parsed few times,
		// however small the parts are that it comes in.
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
		c.room(len(*c.buffer))
		if err := c.more(&late); err != nil {
			return c.late(err)
		}
	}
	r := &c.request
	if n > c.server.cfg.MaxHeader || r.ContentLength > c.server.cfg.MaxBody {
		return Other
	}
	whole := n + int(r.ContentLength)
	if c.end-c.begin < whole {
		c.room(whole)
		for c.end-c.begin < whole {
			if err := c.more(&late); err != nil {
				return c.late(err)
			}
		}
		http1.ParseRequest((*c.buffer)[c.begin:c.end], r) // which has moved
	}
	message := (*c.buffer)[c.begin : c.begin+whole]
	outcome := c.server.cfg.Handler.Handle(ctx, c, r, message[n:])
	if outcome == Next {
		c.begin += whole
	}
	return outcome
}

// room makes room for a message of whole bytes, from begin on.
func (c *Conn) room(whole int) {
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

// more reads the next part of a request that has begun. All of the request has to come until
// late, which more sets if it is zero.
func (c *Conn) more(late *time.Time) error {
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

// late: the rest of a request did not come.
func (c *Conn) late(err error) Outcome {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
		return Other // which knows what to say
	}
	return Cut
}

// pass the connection on, with what was read.
func (c *Conn) pass() bool {
	conn, err := c.Release()
	if err != nil {
		return false
	}
	before := append([]byte(nil), (*c.buffer)[c.begin:c.end]...)
	c.server.buffers.Put(c.buffer)
	c.buffer = nil
	c.Blocking(func() { c.server.pass(conn, before, c.entry) }) // until Others takes it
	return true
}

// linger on a connection after its last answer, until the client has closed it, too.
func (c *Conn) linger() {
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
