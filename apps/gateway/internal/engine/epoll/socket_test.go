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

const patience = 30 * time.Second

// pair returns both sides of a connection.
func pair(t *testing.T) (*epoll.Conn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	there, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { there.Close() })
	here, err := l.Accept()
	require.NoError(t, err)
	c, err := epoll.Open(here)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c, there.(*net.TCPConn)
}

func TestBytesArriveWhicheverSideIsSlow(t *testing.T) {
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

type reader struct{ *epoll.Conn }

func (r reader) Read(p []byte) (int, error) { return r.Conn.Read(p) }

func TestSocket_TakesABufferWhenBytesArrive(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
	from := &epoll.Buffers{Size: 8}
	go func() { _, _ = there.Write([]byte("hello")) }()
	b, n, err := c.ReadInto(from)
	require.NoError(t, err)
	require.Equal(t, "hello", string((*b)[:n]))
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
	b, _, err = c.ReadInto(from)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Nil(t, b)
}

func TestSocket_WriteToAStalledPeerEnds(t *testing.T) {
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

func TestWatch_ReportsTheEndOnly(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
	gone := make(chan struct{})
	c.Watch(func() { close(gone) })
	_, err := there.Write([]byte("x"))
	require.NoError(t, err)
	// Who has sent something is there, even if it has ended the connection since.
	require.Eventually(t, func() bool { return !c.Quiet(true) }, patience, time.Millisecond)
	require.NoError(t, there.CloseWrite())
	p := make([]byte, 2)
	n, err := c.Read(p)
	require.NoError(t, err)
	require.Equal(t, "x", string(p[:n]))
	c.Unwatch()
	select {
	case <-gone: // of the end it was told after the read
	default:
		c.Watch(func() { close(gone) })
		<-gone
	}
	_, err = c.Read(p)
	require.ErrorIs(t, err, io.EOF)

	c, there = pair(t)
	c.Watch(func() { t.Error("the watch was called after Unwatch") })
	c.Unwatch()
	require.NoError(t, there.Close())
	_, err = c.Read(p)
	require.ErrorIs(t, err, io.EOF)

	c, there = pair(t)
	reset := make(chan struct{})
	c.Watch(func() { close(reset) })
	require.NoError(t, there.SetLinger(0))
	require.NoError(t, there.Close())
	<-reset
}

func TestWatch_EndWaitsForItsCallback(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
	began, going, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c.Watch(func() {
		close(began)
		<-going
		close(ended)
	})
	require.NoError(t, there.Close())
	<-began
	time.AfterFunc(5*time.Millisecond, func() { close(going) })
	c.Unwatch()
	select {
	case <-ended:
	default:
		require.Fail(t, "it goes on")
	}
}

func TestSocket_LastDeadlineCounts(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
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
		// Later than a timer that is under way, and than one that has passed.
		require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
		time.AfterFunc(5*time.Millisecond, func() { _, _ = there.Write([]byte("x")) })
		n, err := c.Read(p)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	// It ends a wait that has begun.
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	time.AfterFunc(5*time.Millisecond, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	_, err := c.Read(p)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestSocket_CutEndsIt(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
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
	_, err := io.Copy(io.Discard, there)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Close(), net.ErrClosed)
	require.ErrorIs(t, c.SetReadDeadline(time.Now()), net.ErrClosed)
	_, err = c.Release()
	require.ErrorIs(t, err, net.ErrClosed)
	c.Cut()
}

func TestSocket_ReleasedGoesOn(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
	for range 3 {
		_, err := there.Write([]byte("hello"))
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
		require.Equal(t, there.LocalAddr().String(), conn.RemoteAddr().String())
		require.NoError(t, conn.SetDeadline(time.Time{}))
		c, err = epoll.Open(conn)
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
	}
}

func TestSocket_ManyTakeTurns(t *testing.T) {
	t.Parallel()
	const many = 100
	ended := make(chan error, many)
	for range many {
		c, there := pair(t)
		go func() { _, _ = io.Copy(there, there) }()
		go func() { ended <- turns(c, 200) }()
	}
	for range many {
		require.NoError(t, <-ended)
	}
}

// turns makes times round trips to a peer that repeats what it is sent.
func turns(c *epoll.Conn, times int) error {
	p := make([]byte, 5)
	for range times {
		if !c.Quiet(true) {
			return errors.New("something came that was not asked for")
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
			return fmt.Errorf("%q came", p)
		}
	}
	return c.CloseWrite()
}

func TestSocket_UnaskedAnswerIsSeen(t *testing.T) {
	t.Parallel()
	for _, sure := range []bool{false, true} {
		c, there := pair(t)
		require.True(t, c.Quiet(sure))
		_, err := there.Write([]byte("x"))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return !c.Quiet(sure) }, patience, time.Millisecond)
		_, err = c.Read(make([]byte, 2))
		require.NoError(t, err)
		require.True(t, c.Quiet(sure))
		require.NoError(t, there.CloseWrite())
		require.Eventually(t, func() bool { return !c.Quiet(sure) }, patience, time.Millisecond)
		c.Cut()
		require.False(t, c.Quiet(sure))
	}
}

// TestSocket_EndWithTheLastBytesIsSeen at whatever moment of the reader's look for them: one
// in thousands of these connections has them come between what it finds and what it makes of it.
func TestSocket_EndWithTheLastBytesIsSeen(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var all errgroup.Group
	for range 16 {
		all.Go(func() error {
			for range 800 {
				there, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					return err
				}
				here, err := l.Accept()
				if err != nil {
					return errors.Join(err, there.Close())
				}
				c, err := epoll.Open(here)
				if err != nil {
					return errors.Join(err, here.Close(), there.Close())
				}
				all.Go(func() error {
					_, err := there.Write([]byte("last"))
					return errors.Join(err, there.Close())
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

func TestSocket_OpensSocketsOnly(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	_, err := epoll.Open(a)
	require.Error(t, err)
}
