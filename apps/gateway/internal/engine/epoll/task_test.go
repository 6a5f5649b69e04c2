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

// runAsTask runs f as a task that owns the connections. The channel receives what f returns.
func runAsTask(f func(t *epoll.Task) error, conns ...*epoll.Conn) <-chan error {
	ended := make(chan error, 1)
	epoll.Go(func(t *epoll.Task) {
		for _, c := range conns {
			c.Give(t)
		}
		ended <- f(t)
	})
	return ended
}

func TestTask_ManyMakeRoundTrips(t *testing.T) {
	t.Parallel()
	const many = 100
	var all []<-chan error
	for range many {
		c, peer := connect(t)
		go func() { _, _ = io.Copy(peer, peer) }()
		all = append(all, runAsTask(func(*epoll.Task) error { return makeRoundTrips(c, 200) }, c))
	}
	for _, ended := range all {
		require.NoError(t, <-ended)
	}
}

// As in a gateway, the task waits for the client and for the instance in turn.
func TestTask_WaitsForTheConnectionThatItReads(t *testing.T) {
	t.Parallel()
	toClient, client := connect(t)
	toInstance, instance := connect(t)
	go func() { _, _ = io.Copy(instance, instance) }()
	ended := runAsTask(func(*epoll.Task) error {
		p := make([]byte, 8)
		for {
			for _, direction := range [][2]*epoll.Conn{{toClient, toInstance}, {toInstance, toClient}} {
				n, err := direction[0].Read(p)
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				if _, err := direction[1].Write(p[:n], patience); err != nil {
					return err
				}
			}
		}
	}, toClient, toInstance)
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

func TestTask_BlockingDelaysNoOtherTask(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var blocked []<-chan error
	for range 100 { // more than the poller threads
		c, peer := connect(t)
		read := make(chan struct{})
		blocked = append(blocked, runAsTask(func(task *epoll.Task) error {
			if _, err := c.Read(make([]byte, 1)); err != nil {
				return err
			}
			task.Blocking(func() {
				close(read)
				<-release
			})
			// The task returns to its poller.
			return makeRoundTrips(c, 10)
		}, c))
		_, err := peer.Write([]byte("x"))
		require.NoError(t, err)
		<-read
		go func() { _, _ = io.Copy(peer, peer) }()
	}
	c, peer := connect(t)
	go func() { _, _ = io.Copy(peer, peer) }()
	require.NoError(t, <-runAsTask(func(*epoll.Task) error { return makeRoundTrips(c, 10) }, c))
	close(release)
	for _, ended := range blocked {
		require.NoError(t, <-ended)
	}
}

func TestTask_IsWokenByDeadlinesAndCuts(t *testing.T) {
	t.Parallel()
	c, peer := connect(t)
	require.ErrorIs(t, <-runAsTask(func(*epoll.Task) error {
		for range 10 {
			if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
				return err
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				return errors.Join(errors.New("the read did not end at its deadline"), err)
			}
		}
		if err := c.SetReadDeadline(time.Time{}); err != nil {
			return err
		}
		time.AfterFunc(5*time.Millisecond, c.Cut)
		_, err := c.Read(make([]byte, 1))
		return err
	}, c), net.ErrClosed)
	_, err := peer.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// A task that reads for long leaves the poller by itself, whichever side is slow.
func TestTask_LargeBodiesArriveNextToSmallOnes(t *testing.T) {
	t.Parallel()
	var all []<-chan error
	for range 4 {
		from, source := connect(t)
		to, sink := connect(t)
		sent, got, written := sha256.New(), sha256.New(), make(chan struct{})
		go func() {
			defer close(written)
			_, _ = io.Copy(io.MultiWriter(source, sent), io.LimitReader(zeros{}, 32<<20))
			_ = source.Close()
		}()
		all = append(all, runAsTask(func(*epoll.Task) error {
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
				err = errors.New("the received bytes differ from those sent")
			}
			read <- err
		}()
		all = append(all, read)
	}
	c, peer := connect(t)
	go func() { _, _ = io.Copy(peer, peer) }()
	all = append(all, runAsTask(func(*epoll.Task) error { return makeRoundTrips(c, 200) }, c))
	for _, ended := range all {
		require.NoError(t, <-ended)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
