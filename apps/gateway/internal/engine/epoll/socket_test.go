//go:build linux

package epoll_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine/epoll"
)

const patience = time.Minute

// connect returns both ends of a TCP connection: c, which is tested, and its peer.
func connect(t *testing.T) (c *epoll.Conn, peer *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { dialed.Close() })
	accepted, err := l.Accept()
	require.NoError(t, err)
	c, err = epoll.Open(accepted)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c, dialed.(*net.TCPConn)
}

func TestSocket_BytesArriveWhicheverSideIsSlow(t *testing.T) {
	t.Parallel()
	c, peer := connect(t)
	sent := make([]byte, 8<<20) // more than the system buffers
	_, _ = rand.Read(sent)
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(sent, patience)
		done <- err
	}()
	got := make([]byte, len(sent))
	_, err := io.ReadFull(peer, got)
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.True(t, bytes.Equal(sent, got))

	go func() {
		_, err := peer.Write(sent)
		done <- err
	}()
	_, err = io.ReadFull(reader{c}, got)
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.True(t, bytes.Equal(sent, got))
	require.NoError(t, peer.Close())
	_, err = c.Read(got)
	require.ErrorIs(t, err, io.EOF)
}

type reader struct{ *epoll.Conn }

func (r reader) Read(p []byte) (int, error) { return r.Conn.Read(p) }

func TestReadInto_TakesABufferWhenBytesArrive(t *testing.T) {
	t.Parallel()
	c, peer := connect(t)
	from := &epoll.Buffers{Size: 8}
	go func() { _, _ = peer.Write([]byte("hello")) }()
	b, n, err := c.ReadInto(from)
	require.NoError(t, err)
	require.Equal(t, "hello", string((*b)[:n]))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
	b, _, err = c.ReadInto(from)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Nil(t, b)
}

func TestWrite_ToAStalledPeerTimesOut(t *testing.T) {
	t.Parallel()
	c, peer := connect(t)
	n, err := c.Write(make([]byte, 16<<20), 50*time.Millisecond)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Positive(t, n)
	// The next Write has a wait of its own.
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	_, err = c.Write(make([]byte, 1<<20), patience)
	require.NoError(t, err)
	require.NoError(t, peer.SetLinger(0))
	require.NoError(t, peer.Close())
	for err == nil {
		_, err = c.Write(make([]byte, 1<<10), patience)
	}
	require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%v", err)
}

func TestWatch_ReportsTheEndOnly(t *testing.T) {
	t.Parallel()
	c, peer := connect(t)
	gone := make(chan struct{})
	c.Watch(func() { close(gone) })
	_, err := peer.Write([]byte("x"))
	require.NoError(t, err)
	// While a byte is unread, the end is not reported.
	require.Eventually(t, func() bool { return !c.Quiet(true) }, patience, time.Millisecond)
	require.NoError(t, peer.CloseWrite())
	p := make([]byte, 2)
	n, err := c.Read(p)
	require.NoError(t, err)
	require.Equal(t, "x", string(p[:n]))
	c.Unwatch()
	select {
	case <-gone: // the poller reported the end between Read and Unwatch
	default:
		c.Watch(func() { close(gone) })
		<-gone
	}
	_, err = c.Read(p)
	require.ErrorIs(t, err, io.EOF)

	c, peer = connect(t)
	c.Watch(func() { t.Error("the watch was called after Unwatch") })
	c.Unwatch()
	require.NoError(t, peer.Close())
	_, err = c.Read(p)
	require.ErrorIs(t, err, io.EOF)

	c, peer = connect(t)
	reset := make(chan struct{})
	c.Watch(func() { close(reset) })
	require.NoError(t, peer.SetLinger(0))
	require.NoError(t, peer.Close())
	<-reset
}

func TestUnwatch_WaitsForTheCallback(t *testing.T) {
	t.Parallel()
	c, peer := connect(t)
	began, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c.Watch(func() {
		close(began)
		<-release
		close(ended)
	})
	require.NoError(t, peer.Close())
	<-began
	time.AfterFunc(5*time.Millisecond, func() { close(release) })
	c.Unwatch()
	select {
	case <-ended:
	default:
		require.Fail(t, "the callback runs after Unwatch")
	}
}

func TestSetReadDeadline_LastCallCounts(t *testing.T) {
	t.Parallel()
	c, peer := connect(t)
	p := make([]byte, 2)
	for _, first := range []time.Duration{-time.Second, time.Millisecond, time.Hour} {
		for _, then := range []time.Duration{-time.Second, time.Millisecond} {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(first)))
			require.NoError(t, c.SetReadDeadline(time.Now().Add(then)))
			for range 2 {
				_, err := c.Read(p)
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			}
		}
		// A later deadline replaces one that has passed.
		require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
		time.AfterFunc(5*time.Millisecond, func() { _, _ = peer.Write([]byte("x")) })
		n, err := c.Read(p)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	// A new deadline applies to a Read that waits already.
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	time.AfterFunc(5*time.Millisecond, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	_, err := c.Read(p)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestCut_EndsReadAndWrite(t *testing.T) {
	t.Parallel()
	c, peer := connect(t)
	read, written := make(chan error), make(chan error)
	go func() {
		_, err := c.Read(make([]byte, 1))
		read <- err
	}()
	go func() {
		_, err := c.Write(make([]byte, 16<<20), patience)
		written <- err
	}()
	time.AfterFunc(5*time.Millisecond, c.Cut)
	require.ErrorIs(t, <-read, net.ErrClosed)
	require.Error(t, <-written)
	_, err := io.Copy(io.Discard, peer)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Close(), net.ErrClosed)
	require.ErrorIs(t, c.SetReadDeadline(time.Now()), net.ErrClosed)
	_, err = c.Release()
	require.ErrorIs(t, err, net.ErrClosed)
	c.Cut()
}

func TestRelease_KeepsUnreadBytes(t *testing.T) {
	t.Parallel()
	c, peer := connect(t)
	for range 3 {
		_, err := peer.Write([]byte("hello"))
		require.NoError(t, err)
		p := make([]byte, 2)
		n, err := c.Read(p)
		require.NoError(t, err)
		require.Equal(t, "he", string(p[:n]))
		conn, err := c.Release()
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		p = make([]byte, 3)
		_, err = io.ReadFull(conn, p)
		require.NoError(t, err)
		require.Equal(t, "llo", string(p))
		require.Equal(t, peer.LocalAddr().String(), conn.RemoteAddr().String())
		require.NoError(t, conn.SetDeadline(time.Time{}))
		c, err = epoll.Open(conn)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
	}
}

func TestSocket_ManyMakeRoundTrips(t *testing.T) {
	t.Parallel()
	const many = 100
	ended := make(chan error, many)
	for range many {
		c, peer := connect(t)
		go func() { _, _ = io.Copy(peer, peer) }()
		go func() { ended <- makeRoundTrips(c, 200) }()
	}
	for range many {
		require.NoError(t, <-ended)
	}
}

// makeRoundTrips makes n round trips to a peer that sends back what it receives.
func makeRoundTrips(c *epoll.Conn, n int) error {
	p := make([]byte, 5)
	for range n {
		if !c.Quiet(true) {
			return errors.New("unread bytes before the request, or the end")
		}
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("hello"), patience); err != nil {
			return err
		}
		if _, err := io.ReadFull(reader{c}, p); err != nil {
			return err
		}
		if string(p) != "hello" {
			return fmt.Errorf("received %q", p)
		}
	}
	return c.CloseWrite()
}

func TestQuiet_SeesUnreadBytesAndTheEnd(t *testing.T) {
	t.Parallel()
	for _, sure := range []bool{false, true} {
		c, peer := connect(t)
		require.True(t, c.Quiet(sure))
		_, err := peer.Write([]byte("x"))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return !c.Quiet(sure) }, patience, time.Millisecond)
		_, err = c.Read(make([]byte, 2))
		require.NoError(t, err)
		require.True(t, c.Quiet(sure))
		require.NoError(t, peer.CloseWrite())
		require.Eventually(t, func() bool { return !c.Quiet(sure) }, patience, time.Millisecond)
		c.Cut()
		require.False(t, c.Quiet(sure))
	}
}

// One event may report both the last bytes and the end. It may come after a read found nothing and before the
// reader clears the bit ended, which then must not be cleared. Only one of thousands of connections meets this case.
func TestRead_SeesTheEndThatComesWithTheLastBytes(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var all errgroup.Group
	for range 16 {
		all.Go(func() error {
			for range 800 {
				peer, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					return err
				}
				accepted, err := l.Accept()
				if err != nil {
					return errors.Join(err, peer.Close())
				}
				c, err := epoll.Open(accepted)
				if err != nil {
					return errors.Join(err, accepted.Close(), peer.Close())
				}
				all.Go(func() error {
					_, err := peer.Write([]byte("last"))
					return errors.Join(err, peer.Close())
				})
				err = c.SetReadDeadline(time.Now().Add(patience))
				if err == nil {
					_, err = io.Copy(io.Discard, reader{c})
				}
				if err = errors.Join(err, c.Close()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())
}

func TestOpen_RefusesAConnectionWithoutSocket(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	_, err := epoll.Open(a)
	require.Error(t, err)
}
