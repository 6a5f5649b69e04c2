package agent

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/loader"
	"github.com/windlass-run/windlass/apps/agent/internal/models"
)

// wrapModels returns a runtime that also runs models on the servers of base. If it fails, base is closed.
func wrapModels(cfg Config, base Runtime) (Runtime, error) {
	wrapped, err := models.Wrap(base, &loader.Loader{Client: serverClient()}, cfg.files(), modelsFile, cfg.Log, cfg.Registerer, cfg.Rand)
	if err == nil {
		return wrapped, nil
	}
	if closer, ok := base.(interface{ Close() error }); ok {
		err = errors.Join(err, closer.Close())
	}
	return nil, err
}

const (
	// maxServerHeader is the maximum size of the header of a server's answer, in bytes.
	maxServerHeader = 64 << 10
	// serverDial limits the time to connect to a server. serverIdle is how long an idle connection
	// is kept. It must be longer than the interval at which a server is asked for its models.
	serverDial = 5 * time.Second
	serverIdle = 30 * time.Second
	// maxServerConns is enough for all loads and questions that run at one server at once.
	maxServerConns = 16
)

// serverClient returns a client for servers of models. It connects only to addresses that instances
// can have.
func serverClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            (&net.Dialer{Control: refuseSpecial, Timeout: serverDial}).DialContext,
			MaxIdleConnsPerHost:    2,
			MaxConnsPerHost:        maxServerConns,
			IdleConnTimeout:        serverIdle,
			MaxResponseHeaderBytes: maxServerHeader,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

var errNoInstance = errors.New("an instance cannot have this address")

// refuseSpecial refuses addresses that no instance can have. One of them is the link-local address
// at which clouds serve the credentials of machines.
func refuseSpecial(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return errNoInstance
	}
	if a := at.Addr().Unmap(); a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() {
		return errNoInstance
	}
	return nil
}
