package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
)

// connection is a connection to an instance that counts the written bytes, so that the gateway knows whether an
// instance may have got some of a request. Bytes count from the beginning of their write.
type connection struct {
	net.Conn

	written atomic.Int64

	mu sync.Mutex
	// changed wakes goroutines that wait for reading or closed.
	changed *sync.Cond
	// reading is whether the transport waits for bytes. Then it has handled all bytes that arrived.
	reading, closed bool
	// unasked is whether nothing of the current request was written.
	unasked bool
	// heads is whether the header of an answer is being read. head is the part of it that has arrived.
	heads  bool
	head   []byte
	answer http1.Response
}

// errUnasked is the error for bytes that an instance sent without a request.
var errUnasked = errors.New("the instance sent bytes before the request: the rest of another answer, or bytes that are not HTTP")

func newConnection(conn net.Conn) *connection {
	c := &connection{Conn: conn}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// beginRequest is called before an HTTP/1 request is written to the connection. An instance may have sent more
// than one answer to the request before. Those bytes must not be read as the answer to this request, which may
// come from another client (RFC 9112, section 9.2). net/http finds bytes that have arrived and closes the
// connection if it reads before the request is written. So beginRequest waits for that read. Read finds bytes
// that arrive later, but before the request is written.
func (c *connection) beginRequest(ctx context.Context, reused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unasked, c.heads = true, true
	if !reused || c.reading || c.closed {
		return
	}
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})
	defer stop()
	for !c.reading && !c.closed && ctx.Err() == nil {
		c.changed.Wait()
	}
}

func (c *connection) Read(p []byte) (int, error) {
	c.mu.Lock()
	c.reading = true
	c.changed.Broadcast()
	c.mu.Unlock()
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = false
	if n > 0 && c.unasked {
		return 0, errUnasked
	}
	if err := c.checkHeader(p[:n]); err != nil {
		return 0, err
	}
	return n, err
}

// checkHeader reads the headers of answers in p as the fast path does, and returns why the fast path would refuse
// a header. net/http accepts more headers, but the client's answer must not depend on the path of its request.
func (c *connection) checkHeader(p []byte) error {
	for len(p) > 0 && c.heads {
		b := p
		if len(c.head) == 0 {
			c.answer.Reset()
		} else {
			room := cap(c.head)
			if c.head = append(c.head, p...); cap(c.head) != room {
				c.answer.Reset() // the buffer with the answer's header was moved
			}
			b = c.head
		}
		n, err := c.answer.Parse(b)
		if err != nil {
			return err
		}
		if n == 0 {
			if len(c.head) == 0 {
				c.head = append(c.head, p...)
				c.answer.Reset()
			}
			return nil
		}
		p, c.head = b[n:], nil
		c.heads = c.answer.Status < http.StatusOK && c.answer.Status != http.StatusSwitchingProtocols
	}
	return nil
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.mu.Lock()
	c.closed = true
	c.changed.Broadcast()
	c.mu.Unlock()
	return c.Conn.Close()
}

func (c *connection) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.unasked = false
	c.mu.Unlock()
	// The bytes count before the write, because the answer may arrive before Write returns.
	c.written.Add(int64(len(p)))
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n - len(p)))
	return n, err
}

// CloseWrite is called when one direction of an upgraded connection ends.
func (c *connection) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
