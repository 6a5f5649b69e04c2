package agent

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"syscall"

	"github.com/windlass-run/windlass/apps/agent/internal/loader"
	"github.com/windlass-run/windlass/apps/agent/internal/models"
)

// wrapModels returns a runtime that also runs models on the servers of base. If it fails, base is closed.
func wrapModels(cfg Config, base Runtime) (Runtime, error) {
	wrapped, err := models.Wrap(base, &loader.Loader{Client: serverClient()}, cfg.files(), modelsFile, cfg.Log, cfg.Rand)
	if err == nil {
		return wrapped, nil
	}
	if closer, ok := base.(interface{ Close() error }); ok {
		err = errors.Join(err, closer.Close())
	}
	return nil, err
}

// maxServerHeader bounds the header of a server's answer.
const maxServerHeader = 64 << 10

// serverClient calls servers of models, at the addresses of instances alone.
func serverClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil,
			DialContext:            (&net.Dialer{Control: refuseSpecial}).DialContext,
			MaxIdleConnsPerHost:    2,
			MaxResponseHeaderBytes: maxServerHeader,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

var errNoInstance = errors.New("an instance cannot have this address")

// refuseSpecial refuses addresses that no instance can have. Among them is the link-local address at which clouds
// serve the credentials of machines.
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
