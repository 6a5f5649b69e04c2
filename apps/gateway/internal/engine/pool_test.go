//go:build linux

package engine

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPool_KeepsConnectionsAsLongAsTheInstance(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	address := l.Addr().String()
	now := time.Now()
	var p Pool
	require.Nil(t, p.Get(address, now))
	for range IdlePerInstance + 3 {
		c, err := dialInstance(t.Context(), address, time.Second)
		require.NoError(t, err)
		there, err := l.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { there.Close() })
		p.Put(address, c, now)
	}
	require.Len(t, p.idle[address].conns, IdlePerInstance)
	last := p.Get(address, now)
	require.NotNil(t, last)
	p.Put(address, last, now.Add(IdleConnection/2))
	require.Same(t, last, p.Get(address, now.Add(IdleConnection)), "Get returns the connection that was used last")
	p.Put(address, last, now.Add(IdleConnection/2))
	p.Sweep(now.Add(IdleConnection), IdleConnection)
	require.Len(t, p.idle[address].conns, 1)
	held := p.stackOf(address)
	p.Sweep(now.Add(2*IdleConnection), IdleConnection)
	require.Empty(t, p.idle)
	require.False(t, held.pushConn(parked{}), "a request would not find a connection in a dropped stack")
	_, err = last.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = dialInstance(t.Context(), "127.0.0.1:1", time.Second)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}
