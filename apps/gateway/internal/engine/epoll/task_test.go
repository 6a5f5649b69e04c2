//go:build linux

package epoll_test

import (
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/engine/epoll"
)

// asTask runs f, whose connections are the task's, and returns what it returns.
func asTask(f func(t *epoll.Task) error, conns ...*epoll.Conn) <-chan error {
	ended := make(chan error, 1)
	epoll.Go(func(t *epoll.Task) {
		for _, c := range conns {
			c.Give(t)
		}
		ended <- f(t)
	})
	return ended
}

func TestTask_ManyTakeTurns(t *testing.T) {
	t.Parallel()
	const many = 100
	var all []<-chan error
	for range many {
		c, there := pair(t)
		go func() { _, _ = io.Copy(there, there) }()
		all = append(all, asTask(func(*epoll.Task) error { return turns(c, 200) }, c))
	}
	for _, ended := range all {
		require.NoError(t, <-ended)
	}
}

// A gateway's: it waits for the client and for the instance, in turn.
func TestTask_WaitsForTheConnectionThatItReads(t *testing.T) {
	t.Parallel()
	here, client := pair(t)
	other, instance := pair(t)
	go func() { _, _ = io.Copy(instance, instance) }()
	ended := asTask(func(*epoll.Task) error {
		p := make([]byte, 8)
		for {
			for _, way := range [][2]*epoll.Conn{{here, other}, {other, here}} {
				n, err := way[0].Read(p)
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				if _, err := way[1].Write(p[:n], patience); err != nil {
					return err
				}
			}
		}
	}, here, other)
	p := make([]byte, 5)
	for range 1000 {
		_, err := client.Write([]byte("hello"))
		require.NoError(t, err)
		_, err = io.ReadFull(client, p)
		require.NoError(t, err)
		require.Equal(t, "hello", string(p))
	}
	require.NoError(t, client.CloseWrite())
	require.NoError(t, <-ended)
}

func TestTask_BlockedDelaysNoOther(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var blocked []<-chan error
	for range 100 { // however many pollers there are
		c, there := pair(t)
		read := make(chan struct{})
		blocked = append(blocked, asTask(func(task *epoll.Task) error {
			if _, err := c.Read(make([]byte, 1)); err != nil {
				return err
			}
			task.Blocking(func() {
				close(read)
				<-release
			})
			// And comes back.
			return turns(c, 10)
		}, c))
		_, err := there.Write([]byte("x"))
		require.NoError(t, err)
		<-read
		go func() { _, _ = io.Copy(there, there) }()
	}
	c, there := pair(t)
	go func() { _, _ = io.Copy(there, there) }()
	require.NoError(t, <-asTask(func(*epoll.Task) error { return turns(c, 10) }, c))
	close(release)
	for _, ended := range blocked {
		require.NoError(t, <-ended)
	}
}

func TestTask_WakesByDeadlinesAndCuts(t *testing.T) {
	t.Parallel()
	c, there := pair(t)
	require.ErrorIs(t, <-asTask(func(*epoll.Task) error {
		for range 10 {
			if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
				return err
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				return errors.Join(errors.New("not the deadline"), err)
			}
		}
		if err := c.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
		time.AfterFunc(5*time.Millisecond, c.Cut)
		_, err := c.Read(make([]byte, 1))
		return err
	}, c), net.ErrClosed)
	_, err := there.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// A task that goes on for long leaves the poller by itself, whichever side reads or is slow.
func TestLargeBodiesOfTasksArriveBesideSmallOnes(t *testing.T) {
	t.Parallel()
	var all []<-chan error
	for range 4 {
		from, source := pair(t)
		to, sink := pair(t)
		sent, got, written := sha256.New(), sha256.New(), make(chan struct{})
		go func() {
			defer close(written)
			_, _ = io.Copy(io.MultiWriter(source, sent), io.LimitReader(zeros{}, 32<<20))
			_ = source.Close()
		}()
		all = append(all, asTask(func(*epoll.Task) error {
			p := make([]byte, 4<<10)
			for {
				n, err := from.Read(p)
				if errors.Is(err, io.EOF) {
					return to.CloseWrite()
				}
				if err != nil {
					return err
				}
				if _, err := to.Write(p[:n], patience); err != nil {
					return err
				}
			}
		}, from, to))
		read := make(chan error, 1)
		go func() {
			_, err := io.Copy(got, sink)
			<-written
			if err == nil && string(sent.Sum(nil)) != string(got.Sum(nil)) {
				err = errors.New("something else arrived")
			}
			read <- err
		}()
		all = append(all, read)
	}
	c, there := pair(t)
	go func() { _, _ = io.Copy(there, there) }()
	all = append(all, asTask(func(*epoll.Task) error { return turns(c, 200) }, c))
	for _, ended := range all {
		require.NoError(t, <-ended)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
