package proxy

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/decide"
	"github.com/windlass-run/windlass/apps/gateway/internal/engine"
	"github.com/windlass-run/windlass/pkg/conns"
)

// shedAtOnce is how many connections of clients without a request are closed when this process has run
// out of something.
const shedAtOnce = 16

// closeIdle closes connections that are not in use.
func (p *Proxy) closeIdle() {
	p.pool.Sweep(time.Now(), 0)
	p.transport.close()
	p.cfg.Conns.Shed(shedAtOnce)
}

// absolveInstance removes the instance that was asked last from the counts, because the gateway could not ask
// it.
func (x *exchange) absolveInstance() {
	if x.failure == failExhausted {
		x.deployment, x.instance, x.version = "", "", 0
	}
}

// connectTo connects to an instance for a request on the fast path. Where the process has run out of
// descriptors or ports, connectTo closes idle connections and tries again.
func (p *Proxy) connectTo(ctx context.Context, client *engine.Conn, address string, limit time.Duration) (*engine.Socket, error) {
	begun := time.Now()
	conn, err := client.Dial(ctx, address, limit)
	if err != nil && conns.Local(err) {
		p.closeIdle()
		begun = time.Now()
		conn, err = client.Dial(ctx, address, limit)
	}
	if err != nil {
		return nil, failedDial(err, limit, time.Since(begun))
	}
	return conn, nil
}

// errLate is why a dial that timed out says nothing about the instance.
var errLate = errors.New("the gateway had no processor time")

// failedDial is the error of a dial that may take limit and took elapsed.
func failedDial(err error, limit, elapsed time.Duration) error {
	timeout, ok := errors.AsType[net.Error](err)
	if ok && timeout.Timeout() && decide.IsLate(elapsed, limit) {
		err = errors.Join(errLate, err)
	}
	return &dialError{err}
}

// isLocal reports whether a dial failed for want of something of this process or host.
func isLocal(err error) bool { return conns.Local(err) || errors.Is(err, errLate) }
