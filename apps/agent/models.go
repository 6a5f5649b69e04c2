package agent

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/artifact"
	"github.com/windlass-run/windlass/apps/agent/internal/loader"
	"github.com/windlass-run/windlass/apps/agent/internal/models"
	"github.com/windlass-run/windlass/pkg/guard"
)

// modelFlags are the flags for files of models.
type modelFlags struct {
	Allow   []string `help:"Networks, such as 10.0.0.0/8, in which sources of model.artifact may have private addresses and may be called without TLS. Default: only public addresses, by TLS." env:"ALLOW"`
	DiskMiB int64    `name:"disk-mib" help:"Disk space for files of model.artifact, in MiB. Files that no model needs are deleted when it is full, least recently used first. 0: no limit, but 1 GiB of the disk stays free (process runtime)." default:"0" env:"DISK_MIB"`
}

// storeConfig returns the config of the store of models in dir.
func (f modelFlags) storeConfig(dir string) (artifact.Config, error) {
	allow, err := guard.Parse(f.Allow)
	if err != nil {
		return artifact.Config{}, fmt.Errorf("--model-allow: %w", err)
	}
	if f.DiskMiB < 0 || f.DiskMiB > 1<<40 {
		return artifact.Config{}, fmt.Errorf("--model-disk-mib=%d: want 0 to %d", f.DiskMiB, int64(1)<<40)
	}
	return artifact.Config{Dir: dir, Allow: allow, MaxBytes: f.DiskMiB << 20}, nil
}

// wrapModels returns a runtime that also runs models on the servers of base. If it fails, base is closed.
func wrapModels(cfg Config, base Runtime) (Runtime, error) {
	var store *artifact.Store
	if cfg.Models.Dir != "" {
		var err error
		cfg.Models.Log, cfg.Models.Registerer = cfg.Log, cfg.Registerer
		if store, err = artifact.Open(cfg.Models); err != nil {
			return nil, errors.Join(err, closeRuntime(base))
		}
	}
	wrapped, err := models.Wrap(base, &loader.Loader{Client: serverClient()}, store, cfg.ownFiles(), modelsFile, cfg.Log, cfg.Registerer, cfg.Rand)
	if err == nil {
		wrapped.UseLoaders(serverClient())
		return wrapped, nil
	}
	return nil, errors.Join(err, closeRuntime(base))
}

func closeRuntime(r Runtime) error {
	if closer, ok := r.(interface{ Close() error }); ok {
		return closer.Close()
	}
	return nil
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
