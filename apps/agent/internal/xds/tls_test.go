package xds_test

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/windlass-run/windlass/apps/agent/internal/access"
	"github.com/windlass-run/windlass/pkg/authority"
	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/conns"
)

func TestTLS(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gateway-access")
	ca, err := access.Open(t.Context(), access.Folder(dir), time.Now())
	require.NoError(t, err)
	ready1 := serve(t)
	region := func(t *testing.T) *harness {
		r := startTLS(t, 30*time.Second, access.Config(ca))
		r.hold(1, 100)
		r.see(ready(ready1.address))
		return r
	}
	security := func(cert, key string) credentials.TransportCredentials {
		config, err := certfile.Client{CA: filepath.Join(dir, "ca.crt"), Cert: cert, Key: key}.Config("https://127.0.0.1", nil)
		require.NoError(t, err)
		return credentials.NewTLS(config)
	}
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")

	t.Run("a gRPC client with the agent's files follows the routes", func(t *testing.T) {
		r := region(t)
		channel := fmt.Sprintf(`{"type": "tls", "config": {"ca_certificate_file": %q, "certificate_file": %q, "private_key_file": %q}}`,
			filepath.Join(dir, "ca.crt"), cert, key)
		call(t, r.clientWith("chat.test", channel), 1)
	})
	t.Run("a client without a certificate gets no routes, and delays nothing", func(t *testing.T) {
		r := region(t)
		config, err := certfile.Client{CA: filepath.Join(dir, "ca.crt")}.Config("https://127.0.0.1", nil)
		require.NoError(t, err)
		conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		require.NoError(t, err)
		defer conn.Close()
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
		if err == nil {
			_, err = stream.Recv()
		}
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		require.Empty(t, r.Routed("app_1", 0, 1))
	})
	t.Run("a client's handshake waits for its turn", func(t *testing.T) {
		r := region(t)
		var slots []*conns.Handshake
		for range runtime.GOMAXPROCS(0) {
			h, err := r.table.BeginHandshake(t.Context(), "other", nil, time.Now().Add(patience))
			require.NoError(t, err)
			slots = append(slots, h)
		}
		conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(security(cert, key)))
		require.NoError(t, err)
		defer conn.Close()
		conn.Connect()
		waits := func() bool { return r.table.HandshakesWait() }
		require.Eventually(t, waits, patience, time.Millisecond)
		require.Equal(t, connectivity.Connecting, conn.GetState())
		for _, h := range slots {
			h.Pause()
		}
		require.True(t, conn.WaitForStateChange(t.Context(), connectivity.Connecting))
		require.Equal(t, connectivity.Ready, conn.GetState())
		require.False(t, waits())
	})
	t.Run("an Envoy counts by the name in its certificate, and not only by its own id", func(t *testing.T) {
		r := region(t)
		other := t.TempDir()
		certPEM, keyPEM, err := ca.Issue(authority.Request{Name: "edge-b", Client: true, Life: time.Hour}, time.Now())
		require.NoError(t, err)
		otherCert, otherKey := filepath.Join(other, "tls.crt"), filepath.Join(other, "tls.key")
		require.NoError(t, os.WriteFile(otherCert, certPEM, 0o600))
		require.NoError(t, os.WriteFile(otherKey, keyPEM, 0o600))
		_, err = tls.LoadX509KeyPair(otherCert, otherKey)
		require.NoError(t, err)

		a := r.envoyWith("edge-1", security(cert, key))
		a.ask(resource.ClusterType)
		a.until(resource.ClusterType, func(*discoveryv3.DiscoveryResponse) bool { return true })
		a.cancel()
		require.Eventually(t, func() bool { return r.notes() != "" }, patience, time.Millisecond)
		require.Contains(t, r.notes(), "Envoy edge-1@gateway is away")
		b := r.envoyWith("edge-1", security(otherCert, otherKey))
		b.ask(resource.ClusterType)
		b.until(resource.ClusterType, func(*discoveryv3.DiscoveryResponse) bool { return true })
		require.Contains(t, r.notes(), "Envoy edge-1@gateway is away", "another Envoy does not replace it")
	})
}
