package engine

import (
	"errors"
	"fmt"
	"net"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine/epoll"
)

// Mode says which connections the short way takes.
type Mode string

const (
	// Auto takes all connections that can go the short way.
	Auto Mode = "auto"
	// Net takes no connections: net/http serves all of them, as on systems without epoll.
	Net Mode = "net"
	// Epoll takes the connections of all listeners without TLS. If the short way cannot take a listener's
	// connections, the gateway does not start.
	Epoll Mode = "epoll"
)

// Fits returns why the connections of l cannot go the short way; nil if they can.
func (m Mode) Fits(l net.Listener) error {
	if m == Net {
		return errors.New("the engine is net")
	}
	if _, ok := l.(*net.TCPListener); !ok {
		return fmt.Errorf("%s is not a TCP socket", l.Addr())
	}
	if err := epoll.Start(); err != nil {
		return fmt.Errorf("epoll cannot be used on this system: %w", err)
	}
	return nil
}

// Reserve lets the Go runtime use one processor more than GOMAXPROCS, for work other than the engine's
// pollers. A program that is only a gateway calls it before it serves. With Net, or without epoll, it
// does nothing.
func (m Mode) Reserve() {
	if m != Net {
		_ = epoll.Reserve() // after an error net/http serves, or Fits returns the error
	}
}
