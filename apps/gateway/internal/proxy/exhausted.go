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

// shedAtOnce is how many client connections without a request are closed each time that this process has run
// out of a resource.
const shedAtOnce = 16

// closeIdle closes connections that are not in use.
func (p *Proxy) closeIdle() {
	p.pool.Sweep(time.Now(), 0)
	p.transport.close()
	p.cfg.Conns.Shed(shedAtOnce)
}

// absolveInstance removes the last instance that was tried from the counts, because the gateway could not
// connect to it.
func (x *exchange) absolveInstance() {
	if x.failure == failExhausted {
		x.deployment, x.instance, x.version = "", "", 0
	}
}

// connectTo connects to an instance for a request on the short way. If the process has run out of descriptors or
// ports, connectTo closes idle connections and tries again.
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

// errLate is the error of a dial that timed out because of the gateway, and not because of the instance.
var errLate = errors.New("the gateway had no processor time")

// failedDial returns the error of a dial whose time limit was limit and that took elapsed.
func failedDial(err error, limit, elapsed time.Duration) error {
	timeout, ok := errors.AsType[net.Error](err)
	if ok && timeout.Timeout() && decide.IsLate(elapsed, limit) {
		err = errors.Join(errLate, err)
	}
	return &dialError{err}
}

// isLocal reports whether a dial failed because this process or host lacks a resource.
func isLocal(err error) bool { return conns.Local(err) || errors.Is(err, errLate) }
