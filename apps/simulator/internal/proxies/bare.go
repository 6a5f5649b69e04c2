package proxies

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// BareCommand runs the simulator's binary as a proxy of net/http alone, which only forwards requests. The
// gateway uses net/http and cannot be faster than this proxy. Each argument is an address to listen on, with
// the addresses of its instances: "at=to,to".
const BareCommand = "run-bare-proxy"

// Bare runs BareCommand until ctx ends.
func Bare(ctx context.Context, args []string) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, arg := range args {
		at, to, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%s: %q: use at=to,to", BareCommand, arg)
		}
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
		if err != nil {
			return fmt.Errorf("%s: %w", BareCommand, err)
		}
		instances := strings.Split(to, ",")
		var turn atomic.Uint64
		server := &http.Server{ReadHeaderTimeout: startTimeout, Handler: &httputil.ReverseProxy{
			Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true},
			Rewrite: func(r *httputil.ProxyRequest) {
				r.Out.URL.Scheme, r.Out.URL.Host = "http", instances[turn.Add(1)%uint64(len(instances))]
				r.SetXForwarded()
			},
		}}
		group.Go(func() error { return server.Serve(l) })
		group.Go(func() error {
			<-ctx.Done()
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			return server.Shutdown(ending)
		})
	}
	if err := group.Wait(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
