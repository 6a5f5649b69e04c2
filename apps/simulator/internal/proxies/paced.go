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

// Paced sends perSecond requests a second, however long the answers take, in turn over a number
// of connections. Each request is answered at once. This measures latency at a load that every
// proxy can bear: at a proxy's limit, latency only shows where requests queue.
func (p *Proxy) Paced(ctx context.Context, window time.Duration, connections int, perSecond float64) (Seen, error) {
	ctx, cancel := context.WithTimeout(ctx, window+startTimeout)
	defer cancel()
	var mu sync.Mutex
	var times measure.Durations
	var failed error
	begin := time.Now()
	every := time.Duration(float64(connections) / perSecond * float64(time.Second))
	var all sync.WaitGroup
	for i := range connections {
		all.Go(func() {
			first := begin.Add(every * time.Duration(i) / time.Duration(connections))
			took, err := p.paced(ctx, first, begin.Add(window), every)
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

// paced is one connection. A request that is due while the one before it is not answered has
// waited since it was due. The delay of a late timer does not count.
func (p *Proxy) paced(ctx context.Context, due, end time.Time, every time.Duration) (took []time.Duration, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.Address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // it is at its end either way
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	request := []byte("GET /v1/chat/completions HTTP/1.1\r\nHost: " + Host + "\r\n\r\n")
	in := bufio.NewReader(conn)
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
		if _, err := conn.Write(request); err != nil {
			return nil, err
		}
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			return nil, err
		}
		n, err := io.Copy(io.Discard, res.Body)
		if err = errors.Join(err, res.Body.Close()); err != nil {
			return nil, err
		}
		if res.StatusCode != http.StatusOK || n == 0 {
			return nil, fmt.Errorf("it answers %s, with %d bytes", res.Status, n)
		}
		took = append(took, time.Since(from))
	}
	return took, nil
}
