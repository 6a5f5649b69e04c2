package fleettest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

var (
	errCut     = errors.New("the connection was cut")
	errRefused = errors.New("connection refused")
	errLost    = errors.New("the answer was lost")
)

// node is a client: an agent, the users, or a replica that calls its peers. It is an HTTP transport without
// sockets, so that real calls and streams run in a bubble.
type node struct {
	w    *fleet
	name string
	dice dice
	// reports may be doubled, delayed and lost.
	unreliable bool

	mu    sync.Mutex
	paths map[string]*path // by replica
}

// path is a node's connection to one replica. A cut breaks its calls. While it is held, its messages wait,
// and neither end notices.
type path struct {
	down  bool
	held  chan struct{} // closed when the path is released; nil: the path is not held
	conns []*conn
}

// conn is one call.
type conn struct {
	path   *path
	served bool // it reached its replica
	broken context.Context
	cut    context.CancelCauseFunc
}

func newNode(w *fleet, name string) *node {
	return &node{w: w, name: name, dice: dice{w, name}, paths: map[string]*path{}}
}

func (n *node) path(to string) *path {
	p := n.paths[to]
	if p == nil {
		p = &path{}
		n.paths[to] = p
	}
	return p
}

// each calls f for the path to a replica, or for all paths if to is empty.
func (n *node) each(to string, f func(*path)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.w.replicas {
		if to == "" || to == r.name {
			f(n.path(r.name))
		}
	}
}

// cut breaks every call under way and, while down, each new one.
func (n *node) cut(to string, down bool) {
	n.each(to, func(p *path) {
		p.down = down
		for _, c := range p.conns {
			n.w.happens()
			c.cut(errCut)
		}
		p.conns = nil
	})
}

// hold delays all present and later messages until release.
func (n *node) hold(to string) {
	n.each(to, func(p *path) {
		if p.held == nil {
			p.held = make(chan struct{})
		}
	})
}

func (n *node) release(to string) {
	n.each(to, func(p *path) {
		if p.held != nil {
			n.w.happens()
			close(p.held)
			p.held = nil
		}
	})
}

func (n *node) open(to string) (*conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.path(to)
	if p.down || n.w.ended.Load() {
		return nil, errCut
	}
	ctx, cut := context.WithCancelCause(context.Background())
	c := &conn{path: p, broken: ctx, cut: cut}
	p.conns = append(p.conns, c)
	return c, nil
}

func (n *node) close(c *conn) {
	n.w.happens()
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, other := range c.path.conns {
		if other == c {
			c.path.conns = append(c.path.conns[:i:i], c.path.conns[i+1:]...)
			break
		}
	}
	c.cut(errCut)
}

// latency returns the latency of one message. It is mostly short, and sometimes so long that later messages
// overtake the message.
func (n *node) latency() time.Duration {
	if n.w.faultsOn.Load() && n.dice.intn(40) == 0 {
		return n.dice.between(0, 2*time.Second)
	}
	return n.dice.between(500*time.Microsecond, 20*time.Millisecond)
}

// transit waits as long as a message is on its way, or fails with the connection.
func (n *node) transit(c *conn, r *replica, extra time.Duration) error {
	timer := time.NewTimer(n.latency() + extra)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.broken.Done():
		return context.Cause(c.broken)
	}
	for {
		n.mu.Lock()
		held := c.path.held
		n.mu.Unlock()
		if held == nil {
			return r.awake(c.broken, n.dice)
		}
		select {
		case <-held:
			if err := sleep(c.broken, n.dice.between(0, 10*time.Millisecond)); err != nil {
				return err
			}
		case <-c.broken.Done():
			return context.Cause(c.broken)
		}
	}
}

// RoundTrip implements http.RoundTripper.
func (n *node) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	to := n.w.replica(req.URL.Host, n.dice)
	if to == nil {
		return nil, errRefused
	}
	c, err := n.open(to.name)
	if err != nil {
		return nil, err
	}
	what := req.URL.Path[strings.LastIndexByte(req.URL.Path, '/')+1:]
	if strings.HasPrefix(what, "Watch") {
		return n.stream(c, to, req, what)
	}
	var body []byte
	if req.Body != nil {
		body, err = io.ReadAll(req.Body)
		_ = req.Body.Close() // it was read
		if err != nil {
			return nil, err
		}
	}
	if what == "Report" && n.unreliable && n.w.faultsOn.Load() {
		return n.callUnreliably(c, to, req, body)
	}
	return n.call(req.Context(), c, to, req, body, 0)
}

// latest is the longest delay of a copy of a report. The copy can arrive after the agent's next reports, and
// after its next session began.
const latest = 6 * time.Second

// callUnreliably sends a report twice, late, or with a lost answer. For a late report the agent gets the error
// of a broken connection.
func (n *node) callUnreliably(c *conn, to *replica, req *http.Request, body []byte) (*http.Response, error) {
	what, after := n.dice.intn(12), n.dice.between(0, latest)
	if what <= 1 {
		if copied, err := n.open(to.name); err == nil {
			n.w.running.Go(func() {
				resp, err := n.call(context.Background(), copied, to, req, body, after)
				if err == nil {
					_ = resp.Body.Close() // its error does not matter
				}
			})
		}
	}
	switch what {
	case 1:
		n.close(c)
		return nil, errLost
	case 2:
		if resp, err := n.call(req.Context(), c, to, req, body, 0); err == nil {
			_ = resp.Body.Close() // its error does not matter
		}
		return nil, errLost
	}
	return n.call(req.Context(), c, to, req, body, 0)
}

func serverRequest(ctx context.Context, req *http.Request, body []byte) *http.Request {
	server := req.Clone(ctx)
	server.RequestURI = req.URL.RequestURI()
	server.Proto, server.ProtoMajor, server.ProtoMinor = "HTTP/2.0", 2, 0
	server.RemoteAddr = "wire"
	server.Body = io.NopCloser(bytes.NewReader(body))
	return server
}

// call sends a request and returns its answer. If the caller gives up, the request continues without it.
func (n *node) call(ctx context.Context, c *conn, to *replica, req *http.Request, body []byte, after time.Duration) (*http.Response, error) {
	type answer struct {
		resp *http.Response
		err  error
	}
	answered := make(chan answer, 1)
	n.w.running.Go(func() {
		defer n.close(c)
		resp, err := n.exchange(c, to, req, body, after)
		answered <- answer{resp, err}
	})
	select {
	case a := <-answered:
		return a.resp, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (n *node) exchange(c *conn, to *replica, req *http.Request, body []byte, after time.Duration) (*http.Response, error) {
	if err := n.transit(c, to, after); err != nil {
		return nil, err
	}
	n.w.trace.addf("%s > %s %s %s", n.name, to.name, req.URL.Path, bytesOf(body))
	handler, err := n.arrive(c, to, req)
	if err != nil {
		return nil, err
	}
	var answer bytes.Buffer
	rw := &responseWriter{header: http.Header{}, started: make(chan struct{}), write: func(p []byte) error {
		answer.Write(p)
		return nil
	}}
	handler.ServeHTTP(rw, serverRequest(c.broken, req, body))
	rw.WriteHeader(http.StatusOK)
	rw.finish()
	if err := n.transit(c, to, 0); err != nil {
		return nil, err
	}
	n.w.trace.addf("%s < %s %s %d %s", n.name, to.name, req.URL.Path, rw.status, bytesOf(answer.Bytes()))
	resp := rw.response(req)
	resp.Body = io.NopCloser(&answer)
	return resp, nil
}

// arrive returns the replica's handler for the call.
func (n *node) arrive(c *conn, to *replica, req *http.Request) (http.Handler, error) {
	h := to.handler(req.URL.Host != balancer)
	if h == nil {
		return nil, errRefused
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	c.served = true
	return h, context.Cause(c.broken)
}

// died breaks the calls that the replica had accepted, and calls that would have reached it. Messages on held
// paths stay held.
func (n *node) died(r *replica) {
	n.each(r.name, func(p *path) {
		for _, c := range p.conns {
			if c.served || p.held == nil {
				n.w.happens()
				c.cut(errCut)
			}
		}
	})
}

// inFlight is the maximum number of unread frames on a connection.
const inFlight = 64

// stream sends a request whose answer is a stream of frames.
func (n *node) stream(c *conn, to *replica, req *http.Request, what string) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	frames := make(chan []byte, inFlight)
	read, write := io.Pipe()
	rw := &responseWriter{header: http.Header{}, started: make(chan struct{}), write: func(p []byte) error {
		if c.broken.Err() != nil {
			return context.Cause(c.broken)
		}
		select {
		case frames <- bytes.Clone(p):
			return nil
		case <-c.broken.Done():
			return context.Cause(c.broken)
		}
	}}
	begun := make(chan error, 3) // large enough for all sends
	n.w.running.Go(func() {
		defer close(frames)
		err := n.transit(c, to, 0)
		var handler http.Handler
		if err == nil {
			n.w.trace.addf("%s > %s %s %s", n.name, to.name, what, bytesOf(body))
			handler, err = n.arrive(c, to, req)
		}
		if err != nil {
			begun <- err
			return
		}
		handler.ServeHTTP(rw, serverRequest(c.broken, req, body))
		rw.WriteHeader(http.StatusOK)
		rw.finish()
	})
	n.w.running.Go(func() {
		defer n.close(c)
		defer context.AfterFunc(c.broken, func() { write.CloseWithError(context.Cause(c.broken)) })()
		first := true
		for frame := range frames {
			if err := n.transit(c, to, 0); err != nil {
				write.CloseWithError(err)
				begun <- err
				break
			}
			if first {
				first = false
				begun <- nil
			}
			n.w.trace.addf("%s < %s %s %s", n.name, to.name, what, bytesOf(frame))
			if _, err := write.Write(frame); err != nil {
				break // the reader has gone
			}
		}
		if first {
			begun <- nil
		}
		write.Close()
		n.close(c)
		for range frames {
		}
	})
	select {
	case err := <-begun:
		if err != nil {
			return nil, err
		}
	case <-req.Context().Done():
		n.gone(c, to)
		return nil, context.Cause(req.Context())
	}
	select {
	case <-rw.started:
	default:
		return nil, errCut
	}
	resp := rw.response(req)
	stop := context.AfterFunc(req.Context(), func() {
		read.CloseWithError(context.Cause(req.Context()))
		n.gone(c, to)
	})
	resp.Body = &streamBody{PipeReader: read, closed: func() {
		stop()
		n.gone(c, to)
	}}
	return resp, nil
}

// gone tells the server that the client has left, if the message gets through.
func (n *node) gone(c *conn, to *replica) {
	n.w.running.Go(func() {
		if n.transit(c, to, 0) == nil {
			n.w.happens()
			c.cut(context.Canceled)
		}
	})
}

type streamBody struct {
	*io.PipeReader
	closed func()
}

func (b *streamBody) Close() error {
	defer b.closed()
	return b.PipeReader.Close()
}

// responseWriter stores the answer, and passes each piece on.
type responseWriter struct {
	once    sync.Once
	header  http.Header
	sent    http.Header
	trailer http.Header
	status  int
	started chan struct{}
	write   func([]byte) error
}

func (r *responseWriter) Header() http.Header { return r.header }

func (r *responseWriter) WriteHeader(status int) {
	r.once.Do(func() {
		r.status, r.sent, r.trailer = status, r.header.Clone(), http.Header{}
		close(r.started)
	})
}

func (r *responseWriter) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if err := r.write(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (r *responseWriter) Flush() { r.WriteHeader(http.StatusOK) }

func (r *responseWriter) finish() {
	for k, v := range r.header {
		if name, ok := strings.CutPrefix(k, http.TrailerPrefix); ok {
			r.trailer[name] = v
		}
	}
}

func (r *responseWriter) response(req *http.Request) *http.Response {
	return &http.Response{
		StatusCode: r.status, Status: http.StatusText(r.status),
		Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: r.sent, Trailer: r.trailer, Request: req, ContentLength: -1,
	}
}
