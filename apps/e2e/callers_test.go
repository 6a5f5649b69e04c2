package e2e

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/authority"
)

// slowGateway answers completions over TLS. Its handshakes wait until the gateway is released.
type slowGateway struct {
	*httptest.Server

	release  chan struct{}
	accepted atomic.Int64

	mu sync.Mutex
	// waiting is how many handshakes wait, and most how many of them waited at the same time.
	waiting, most int
}

func startSlowGateway(t *testing.T) *slowGateway {
	t.Helper()
	cas, err := rootCAs()
	require.NoError(t, err)
	certPEM, keyPEM, err := cas[0].Issue(authority.Request{Name: "slow", Hosts: []string{"127.0.0.1"}, Server: true, Life: time.Hour}, time.Now())
	require.NoError(t, err)
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	g := &slowGateway{release: make(chan struct{})}
	g.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	g.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	g.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			g.accepted.Add(1)
		}
	}
	g.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		g.mu.Lock()
		g.waiting++
		g.most = max(g.most, g.waiting)
		g.mu.Unlock()
		<-g.release
		g.mu.Lock()
		g.waiting--
		g.mu.Unlock()
		return nil, nil //nolint:nilnil // the config above
	}}
	g.StartTLS()
	t.Cleanup(g.Close)
	return g
}

func (g *slowGateway) mostAtOnce() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.most
}

// TestCallers_MakeFewHandshakesAtATime asserts that a gateway with slow handshakes gets at most
// mostHandshakes of them at a time, and that all requests are answered.
func TestCallers_MakeFewHandshakesAtATime(t *testing.T) {
	g := startSlowGateway(t) // not parallel, since the clients of all tests share the handshakes
	s := &stack{t: t, patience: patience, gateways: map[string]string{us: g.URL}}
	load := s.callers("chat.windlass.local")
	t.Cleanup(load.stop)
	const requests = 4 * mostHandshakes
	require.Eventually(t, func() bool { return load.begun() >= requests && g.mostAtOnce() >= mostHandshakes }, patience, 10*time.Millisecond,
		"%d requests wait for %d handshakes", requests, mostHandshakes)
	close(g.release)
	require.Eventually(t, func() bool { return load.count() >= 2*requests }, patience, 10*time.Millisecond, "%d requests are answered", 2*requests)
	load.stop()
	load.requireNoneFailed(t, "handshakes were slow")
	require.Equal(t, mostHandshakes, g.mostAtOnce(), "handshakes at the same time")
	require.Less(t, g.accepted.Load(), int64(load.count()), "connections are kept")
}
