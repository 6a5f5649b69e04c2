package proxies

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
)

// Paced sends perSecond requests a second in turn over a number of connections, independently of how long
// answers take. Each is answered at once. The load must be one that every proxy can serve, because at a
// proxy's limit latency only shows queues. The first request of a connection is not measured, because it also
// waits for the connection: see Fresh.
func (p *Proxy) Paced(ctx context.Context, window time.Duration, connections int, perSecond float64) (Seen, error) {
	ctx, cancel := context.WithTimeout(ctx, window+startTimeout)
	defer cancel()
	clients := make([]*client, connections)
	defer func() {
		for _, c := range clients {
			if c != nil {
				c.close()
			}
		}
	}()
	for i := range clients {
		c, err := p.dial(ctx)
		if err == nil {
			clients[i] = c
			err = c.sendRequest()
		}
		if err != nil {
			return Seen{}, err
		}
	}
	return callPaced(ctx, window, connections, perSecond, func(i int) error { return clients[i].sendRequest() })
}

// Fresh is Paced with a new connection for each request. The measured time includes the connection.
func (p *Proxy) Fresh(ctx context.Context, window time.Duration, clients int, perSecond float64) (Seen, error) {
	ctx, cancel := context.WithTimeout(ctx, window+startTimeout)
	defer cancel()
	return callPaced(ctx, window, clients, perSecond, func(int) error {
		c, err := p.dial(ctx)
		if err != nil {
			return err
		}
		defer c.close()
		return c.sendRequest()
	})
}

// callPaced calls ask perSecond times a second until the window has passed, for each client in turn.
func callPaced(ctx context.Context, window time.Duration, clients int, perSecond float64, ask func(client int) error) (Seen, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var times measure.Durations
	var failed error
	begin := time.Now()
	every := time.Duration(float64(clients) / perSecond * float64(time.Second))
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			first := begin.Add(every * time.Duration(i) / time.Duration(clients))
			took, err := inTime(ctx, first, begin.Add(window), every, func() error { return ask(i) })
			mu.Lock()
			defer mu.Unlock()
			for _, t := range took {
				times.Add(t)
			}
			if err != nil {
				failed = errors.Join(failed, err)
				cancel()
			}
		})
	}
	all.Wait()
	if failed != nil {
		return Seen{}, failed
	}
	return Seen{PerSecond: float64(times.Len()) / time.Since(begin).Seconds(), P99: times.Quantile(0.99)}, nil
}

// inTime sends the requests of one client. A request that is due before the last one was answered is measured
// from when it was due. The delay of a late timer does not count.
func inTime(ctx context.Context, due, end time.Time, every time.Duration, ask func() error) (took []time.Duration, err error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ; due.Before(end); due = due.Add(every) {
		from := due
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			from = time.Now()
		}
		if err := ask(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(from))
	}
	return took, nil
}

// client is a connection to a proxy.
type client struct {
	conn net.Conn
	in   *bufio.Reader
	stop func() bool
}

// dial connects a client, whose connection is closed when ctx ends.
func (p *Proxy) dial(ctx context.Context) (*client, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.Address)
	if err != nil {
		return nil, err
	}
	return &client{conn, bufio.NewReader(conn), context.AfterFunc(ctx, func() { _ = conn.Close() })}, nil
}

func (c *client) close() {
	c.stop()
	_ = c.conn.Close() // it is at its end either way
}

var request = []byte("GET /v1/chat/completions HTTP/1.1\r\nHost: " + Host + "\r\n\r\n")

// sendRequest sends a request, and reads the answer.
func (c *client) sendRequest() error {
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, res.Body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK || n == 0 {
		return fmt.Errorf("it answers %s, with %d bytes", res.Status, n)
	}
	return nil
}
