package gateway

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBacklog_IsKnown(t *testing.T) {
	l, err := listenShared(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	require.False(t, hasQueued(l))
	client, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	require.Eventually(t, func() bool { return hasQueued(l) }, time.Minute, time.Millisecond)
	conn, err := l.Accept()
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	require.False(t, hasQueued(l))
}

func TestRestart_NewConnectionsGoToTheSuccessor(t *testing.T) {
	leaves, err := listenShared(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	stays, err := listenShared(t.Context(), leaves.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, stays.Close()) }()
	require.NoError(t, yieldNewConnections(leaves))
	for range 100 {
		client, err := new(net.Dialer).DialContext(t.Context(), "tcp", stays.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
	}
	require.False(t, hasQueued(leaves))
	require.NoError(t, leaves.Close())
	for range 100 {
		conn, err := stays.Accept()
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}
