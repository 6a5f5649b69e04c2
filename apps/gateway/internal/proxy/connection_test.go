package proxy

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// eager is a connection whose peer answers before Write returns.
type eager struct {
	net.Conn

	write func(p []byte) (int, error)
}

func (e eager) Write(p []byte) (int, error) { return e.write(p) }

func TestConnection_CountsBytesBeforeTheyAreWritten(t *testing.T) {
	var c *connection
	c = newConnection(eager{write: func(p []byte) (int, error) {
		require.Equal(t, int64(len(p)), c.written.Load(), "the answer may arrive during the write")
		return len(p), nil
	}})
	n, err := c.Write([]byte("request"))
	require.NoError(t, err)
	require.Equal(t, 7, n)

	broken := errors.New("broken")
	none := newConnection(eager{write: func([]byte) (int, error) { return 0, broken }})
	_, err = none.Write([]byte("request"))
	require.ErrorIs(t, err, broken)
	require.Zero(t, none.written.Load(), "no byte was sent, so the request may go to another instance")
}
