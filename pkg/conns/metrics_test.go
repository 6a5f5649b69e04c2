package conns

import (
	"net"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

// dialled connects n times to l, and returns when all n connections are accepted or refused by the table.
func dialled(t *testing.T, table *Table, l net.Listener, n int) {
	t.Helper()
	before, refused, _ := table.Figures()
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	for range n {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
	}
	require.Eventually(t, func() bool {
		open, now, _ := table.Figures()
		return open-before+now-refused >= int64(n)
	}, patience, step)
}

func TestCollector_CountsByListener(t *testing.T) {
	t.Parallel()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	clients, own := New(Limits{Total: 3}), New(Limits{Total: 1})
	dialled(t, clients, clients.ListenAs("api", listen()), 2)
	dialled(t, clients, clients.ListenAs("peers", listen()), 1)
	dialled(t, own, own.ListenBusy("restate", listen()), 3)
	// At the limit, the connection of the API that is idle for longest is closed.
	l := clients.ListenAs("peers", listen())
	go func() { _, _ = l.Accept() }()
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	require.Eventually(t, func() bool { _, _, shed := clients.Figures(); return shed == 1 }, patience, step)
	require.NoError(t, testutil.CollectAndCompare(NewCollector(clients, own), strings.NewReader(`
# HELP windlass_connections Connections to a listener.
# TYPE windlass_connections gauge
windlass_connections{listener="api"} 1
windlass_connections{listener="peers"} 2
windlass_connections{listener="restate"} 1
# HELP windlass_connections_refused_total Connections to a listener that were closed at once, because the limit was reached and all connections had requests.
# TYPE windlass_connections_refused_total counter
windlass_connections_refused_total{listener="api"} 0
windlass_connections_refused_total{listener="peers"} 0
windlass_connections_refused_total{listener="restate"} 2
# HELP windlass_connections_shed_total Connections to a listener that had no request and were closed to make room for other connections.
# TYPE windlass_connections_shed_total counter
windlass_connections_shed_total{listener="api"} 1
windlass_connections_shed_total{listener="peers"} 0
windlass_connections_shed_total{listener="restate"} 0
# HELP windlass_handshakes_refused_total TLS handshakes of a listener that were refused, by reason. queue: too many waited. address: too many of the address waited. late: the wait took too long.
# TYPE windlass_handshakes_refused_total counter
windlass_handshakes_refused_total{listener="api",reason="address"} 0
windlass_handshakes_refused_total{listener="api",reason="late"} 0
windlass_handshakes_refused_total{listener="api",reason="queue"} 0
windlass_handshakes_refused_total{listener="peers",reason="address"} 0
windlass_handshakes_refused_total{listener="peers",reason="late"} 0
windlass_handshakes_refused_total{listener="peers",reason="queue"} 0
windlass_handshakes_refused_total{listener="restate",reason="address"} 0
windlass_handshakes_refused_total{listener="restate",reason="late"} 0
windlass_handshakes_refused_total{listener="restate",reason="queue"} 0
# HELP windlass_handshakes_waiting TLS handshakes of a listener that wait for processor time, because other handshakes use it.
# TYPE windlass_handshakes_waiting gauge
windlass_handshakes_waiting{listener="api"} 0
windlass_handshakes_waiting{listener="peers"} 0
windlass_handshakes_waiting{listener="restate"} 0
# HELP windlass_streams_held_back_total Streams of a listener that had to wait, because their caller and connection opened too many streams that were refused.
# TYPE windlass_streams_held_back_total counter
windlass_streams_held_back_total{listener="api"} 0
windlass_streams_held_back_total{listener="peers"} 0
windlass_streams_held_back_total{listener="restate"} 0
`)))
}
