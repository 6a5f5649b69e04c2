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
	// Auto takes those that it can.
	Auto Mode = "auto"
	// Net takes none: net/http serves them all, as it does on systems without epoll.
	Net Mode = "net"
	// Epoll takes those of all listeners without TLS. Where one cannot be, the gateway does not start.
	Epoll Mode = "epoll"
)

// Fits returns why net/http serves the connections of l, nil if the short way does.
func (m Mode) Fits(l net.Listener) error {
	if m == Net {
		return errors.New("the engine is net")
	}
	if _, ok := l.(*net.TCPListener); !ok {
		return fmt.Errorf("%s is no TCP socket", l.Addr())
	}
	if err := epoll.Start(); err != nil {
		return fmt.Errorf("epoll cannot be used on this system: %w", err)
	}
	return nil
}

// Reserve lets the Go runtime use one processor more than GOMAXPROCS says, for what the process does besides
// the engine's pollers. A program that is a gateway and nothing else calls it before it serves. With Net,
// and where there is no epoll, it does nothing.
func (m Mode) Reserve() {
	if m != Net {
		_ = epoll.Reserve() // net/http serves then, or Fits says why
	}
}
