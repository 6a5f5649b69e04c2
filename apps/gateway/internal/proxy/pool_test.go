package proxy

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConnectionsAreKeptForAsLongAsAnInstanceKeepsThem(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	address := l.Addr().String()
	now := time.Now()
	var p pool
	require.Nil(t, p.get(address, now))
	for range idlePerInstance + 3 {
		c, err := connect(t.Context(), address, time.Second)
		require.NoError(t, err)
		there, err := l.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { there.Close() })
		p.put(address, c, now)
	}
	require.Len(t, p.idle[address].conns, idlePerInstance)
	last := p.get(address, now)
	require.NotNil(t, last)
	p.put(address, last, now.Add(idleConnection/2))
	require.Same(t, last, p.get(address, now.Add(idleConnection)), "the one that was used last")
	p.put(address, last, now.Add(idleConnection/2))
	p.sweep(now.Add(idleConnection), idleConnection)
	require.Len(t, p.idle[address].conns, 1)
	held := p.stack(address)
	p.sweep(now.Add(2*idleConnection), idleConnection)
	require.Empty(t, p.idle)
	require.False(t, held.push(parked{}), "no request would find it")
	_, err = last.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = connect(t.Context(), "127.0.0.1:1", time.Second)
	var refused *dialError
	require.ErrorAs(t, err, &refused)
}
