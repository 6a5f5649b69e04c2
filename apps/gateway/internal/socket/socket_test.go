//go:build linux

package socket_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/socket"
)

const patience = 30 * time.Second

// pair returns both sides of a connection.
func pair(t *testing.T) (*socket.Conn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	there, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { there.Close() })
	here, err := l.Accept()
	require.NoError(t, err)
	c, err := socket.Open(here)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c, there.(*net.TCPConn)
}

func TestBytesArriveWhoeverIsSlow(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
	sent := make([]byte, 8<<20) // more than the system keeps
	_, _ = rand.Read(sent)
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(sent, patience)
		done <- err
	}()
	got := make([]byte, len(sent))
	_, err := io.ReadFull(there, got)
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.True(t, bytes.Equal(sent, got))

	go func() {
		_, err := there.Write(sent)
		done <- err
	}()
	_, err = io.ReadFull(reader{c}, got)
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.True(t, bytes.Equal(sent, got))
	require.NoError(t, there.Close())
	_, err = c.Read(got)
	require.ErrorIs(t, err, io.EOF)
}

type reader struct{ *socket.Conn }

func (r reader) Read(p []byte) (int, error) { return r.Conn.Read(p) }

func TestABufferIsTakenWhenThereIsSomethingForIt(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
	from := &socket.Buffers{Size: 8}
	go func() { _, _ = there.Write([]byte("hello")) }()
	b, n, err := c.ReadInto(from)
	require.NoError(t, err)
	require.Equal(t, "hello", string((*b)[:n]))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
	b, _, err = c.ReadInto(from)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Nil(t, b)
}

func TestAWriteThatNobodyTakesEnds(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
	n, err := c.Write(make([]byte, 16<<20), 50*time.Millisecond)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Positive(t, n)
	// The deadline is not the next one's.
	go func() { _, _ = io.Copy(io.Discard, there) }()
	_, err = c.Write(make([]byte, 1<<20), patience)
	require.NoError(t, err)
	require.NoError(t, there.SetLinger(0))
	require.NoError(t, there.Close())
	for err == nil {
		_, err = c.Write(make([]byte, 1<<10), patience)
	}
	require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%v", err)
}

func TestWhatIsThereIsSeenWithoutBeingTaken(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
	require.ErrorIs(t, c.Wait(), os.ErrDeadlineExceeded)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	go func() { _, _ = there.Write([]byte("x")) }()
	require.NoError(t, c.Wait())
	p := make([]byte, 2)
	n, err := c.Read(p)
	require.NoError(t, err)
	require.Equal(t, "x", string(p[:n]))
	require.NoError(t, there.CloseWrite())
	require.ErrorIs(t, c.Wait(), io.EOF)
}

func TestWhoeverIsAskedAnswersAndNobodyElse(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
	asked := make([]byte, 4<<20) // more than the system keeps
	go func() {
		got := make([]byte, len(asked))
		for {
			if _, err := io.ReadFull(there, got[:5]); err != nil {
				return
			}
			if got[0] == 0 {
				if _, err := io.ReadFull(there, got[5:]); err != nil {
					return
				}
			}
			_, _ = there.Write([]byte("answer"))
		}
	}()
	p := make([]byte, 10)
	for n := range 300 {
		what := []byte("hello")
		if n%100 == 50 {
			what = asked
		}
		sent, err := c.Ask(what, patience)
		require.NoError(t, err)
		require.Len(t, what, sent)
		n, err := c.Read(p)
		require.NoError(t, err)
		require.Equal(t, "answer", string(p[:n]))
	}
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err := c.Ask([]byte("half"), patience)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	_, err = there.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, c.Wait())
	sent, err := c.Ask([]byte("hello"), patience)
	require.ErrorIs(t, err, socket.ErrUnfit)
	require.Zero(t, sent)
	c, there = pair(t)
	require.NoError(t, there.CloseWrite())
	require.ErrorIs(t, c.Wait(), io.EOF)
	_, err = c.Ask([]byte("hello"), patience)
	require.ErrorIs(t, err, socket.ErrUnfit)
}

func TestOnlySocketsAreOpened(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	_, err := socket.Open(a)
	require.Error(t, err)
}
