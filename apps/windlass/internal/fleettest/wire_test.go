package fleettest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// wire is an HTTP transport without sockets: it calls the handler over pipes, so
// that a real stream runs in a synctest bubble. It can be cut.
type wire struct {
	mu      sync.Mutex
	handler http.Handler
	down    bool
	live    map[*call]struct{}
}

type call struct{ cancel context.CancelCauseFunc }

var errCut = errors.New("the wire was cut")

func newWire() *wire { return &wire{live: map[*call]struct{}{}} }

// plug connects the wire to a server; nil disconnects it.
func (w *wire) plug(h http.Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handler = h
}

// cut breaks every call under way and, while down, each new one.
func (w *wire) cut(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
	for c := range w.live {
		c.cancel(errCut)
	}
}

func (w *wire) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	c := &call{cancel: cancel}
	w.mu.Lock()
	handler := w.handler
	if w.down || handler == nil {
		w.mu.Unlock()
		cancel(errCut)
		return nil, errCut
	}
	w.live[c] = struct{}{}
	w.mu.Unlock()

	server := req.Clone(ctx)
	server.RequestURI = req.URL.RequestURI()
	server.Proto, server.ProtoMajor, server.ProtoMinor = "HTTP/2.0", 2, 0
	server.RemoteAddr = "wire"
	if server.Body == nil {
		server.Body = http.NoBody
	}
	read, write := io.Pipe()
	rw := &responseWriter{header: http.Header{}, pipe: write, started: make(chan struct{})}
	go func() {
		defer func() {
			w.mu.Lock()
			delete(w.live, c)
			w.mu.Unlock()
			rw.WriteHeader(http.StatusOK)
			rw.finish()
			cancel(nil)
		}()
		handler.ServeHTTP(rw, server)
	}()
	stop := context.AfterFunc(ctx, func() { write.CloseWithError(context.Cause(ctx)) })
	select {
	case <-rw.started:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	resp := &http.Response{
		StatusCode: rw.status, Status: http.StatusText(rw.status),
		Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: rw.sent, Trailer: rw.trailer, Request: req, ContentLength: -1,
	}
	resp.Body = &body{PipeReader: read, done: func() { stop(); cancel(context.Canceled) }}
	return resp, nil
}

type body struct {
	*io.PipeReader
	done func()
}

func (b *body) Close() error {
	defer b.done()
	return b.PipeReader.Close()
}

// responseWriter hands over the header at the first write or flush.
type responseWriter struct {
	once    sync.Once
	header  http.Header
	sent    http.Header
	trailer http.Header
	status  int
	started chan struct{}
	pipe    *io.PipeWriter
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
	return r.pipe.Write(p)
}

func (r *responseWriter) Flush() { r.WriteHeader(http.StatusOK) }

func (r *responseWriter) finish() {
	for k, v := range r.header {
		if len(k) > len(http.TrailerPrefix) && k[:len(http.TrailerPrefix)] == http.TrailerPrefix {
			r.trailer[k[len(http.TrailerPrefix):]] = v
		}
	}
	r.pipe.Close()
}
