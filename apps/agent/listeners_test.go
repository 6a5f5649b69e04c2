package agent

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/conns"
)

func TestListenerFlags(t *testing.T) {
	t.Run("flags that contradict each other are refused with their names", func(t *testing.T) {
		for want, f := range map[string]certfile.ServerFlags{
			"--listen-insecure: leave --listen-tls-cert":                                      {Insecure: true, PairFlags: certfile.PairFlags{Cert: "a"}},
			"--listen-tls-cert, --listen-tls-key and --listen-client-ca: give all three":      {PairFlags: certfile.PairFlags{Cert: "a", Key: "b"}},
			"--listen-tls-cert: certificate " + filepath.Join("no", "cert") + " with key b: ": {PairFlags: certfile.PairFlags{Cert: filepath.Join("no", "cert"), Key: "b"}, ClientCA: "c"},
		} {
			_, err := openListeners(f, nil)
			require.ErrorContains(t, err, want)
		}
	})
	t.Run("without any flag, gateways of other hosts need a certificate", func(t *testing.T) {
		l, err := openListeners(certfile.ServerFlags{}, nil)
		require.NoError(t, err)
		require.False(t, l.Insecure)
	})
}

// A listener refuses connections at its limit, and does not affect the connections of the other
// listener.
func TestConnTables(t *testing.T) {
	registry := prometheus.NewRegistry()
	tables, err := newConnTables(conns.Limits{Total: 1, PerAddress: -1}, registry)
	require.NoError(t, err)
	dial := func(l net.Listener) net.Conn {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	listen := func(wrap func(string, net.Listener) net.Listener, name string) net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		l = wrap(name, l)
		go func() {
			for {
				if _, err := l.Accept(); err != nil {
					return
				}
			}
		}()
		return l
	}
	xds, gateways := listen(tables.xds.ListenBusy, "xds"), listen(tables.gateways.ListenAs, "gateways")
	dial(xds)
	_, err = dial(xds).Read(make([]byte, 1))
	require.Error(t, err, "the first connection stays open")
	dial(gateways)
	require.Eventually(t, func() bool { open, _, _ := tables.gateways.Figures(); return open == 1 }, time.Minute, time.Millisecond)
	_, refused, shed := tables.xds.Figures()
	require.Equal(t, []int64{1, 0}, []int64{refused, shed})
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		listeners := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "listener" {
					listeners[label.GetValue()] = true
				}
			}
		}
		require.Equal(t, map[string]bool{"xds": true, "gateways": true}, listeners, f.GetName())
	}
	require.NotEmpty(t, families)
}
