package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// balancer is a TCP load balancer in front of the replicas of the control plane. Each new connection goes to
// the next replica that accepts it.
type balancer struct {
	listener net.Listener
	backends []string
	next     atomic.Uint32
	open     sync.WaitGroup
}

func newBalancer(t *testing.T, backends ...string) *balancer {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &balancer{listener: listener, backends: backends}
	b.open.Go(func() {
		for {
			client, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				b.open.Go(func() { b.join(client) })
			}
		}
	})
	return b
}

func (b *balancer) join(client net.Conn) {
	defer func() { _ = client.Close() }()
	for range b.backends {
		backend, err := net.DialTimeout("tcp", b.backends[int(b.next.Add(1))%len(b.backends)], time.Second)
		if err != nil {
			continue
		}
		defer func() { _ = backend.Close() }() //nolint:revive,gocritic // the loop ends with the first that answers
		var ways sync.WaitGroup
		pipe := func(to, from net.Conn) {
			_, _ = io.Copy(to, from)
			_, _ = to.Close(), from.Close()
		}
		ways.Go(func() { pipe(backend, client) })
		ways.Go(func() { pipe(client, backend) })
		ways.Wait()
		return
	}
}

// close waits until both ends of all connections are closed.
func (b *balancer) close() {
	_ = b.listener.Close()
	b.open.Wait()
}

// second is the other replica of the control plane.
const second = partControlPlane + "-2"

// TestControlPlanes runs two replicas, which share a database, a Restate and the agents. If one stops, dies
// or hangs, the other one continues.
func TestControlPlanes(t *testing.T) { //nolint:tparallel // its rounds run one after the other
	t.Parallel()
	s := newStack(t, stackConfig{replicas: 2})
	s.deployReady(t, "steady", spec(replicas(2)))
	s.deployReady(t, "moving", spec(label("v1")))
	steady := s.runningOf("steady")

	round := 0
	for _, name := range []string{partControlPlane, second} {
		for what, fault := range map[string]func() (mend func()){
			"stops": func() func() {
				s.stop(name)
				return func() { s.start(name) }
			},
			"dies": func() func() {
				s.kill9(name)
				return func() { s.start(name) }
			},
			"stands still": func() func() {
				require.NoError(t, syscall.Kill(s.pid(name), syscall.SIGSTOP))
				wake := time.AfterFunc(3*time.Second, func() { _ = syscall.Kill(s.pid(name), syscall.SIGCONT) })
				return func() { wake.Stop(); _ = syscall.Kill(s.pid(name), syscall.SIGCONT) }
			},
		} {
			require.True(t, t.Run(name+" "+what, func(t *testing.T) {
				round++
				d := s.deploy(t, "moving", spec(label(fmt.Sprint("during-", round)), args("--load-time", "1s")))
				mend := fault()
				defer mend()
				s.waitLive(t, "moving", d.Version)
				s.waitConnected(s.cfg.regions...)
				s.deployReady(t, "moving", spec(label(fmt.Sprint("after-", round))))
			}))
			s.waitAgree(t)
			requireSame(t, steady, s.runningOf("steady"), "a healthy instance was restarted")
		}
	}
}

// balance adds the second replica, and a balancer in front of both.
func (s *stack) balance(built string) {
	first := s.url
	s.addControlPlane(built, second)
	s.balancer = newBalancer(s.t, hostOf(first), hostOf(s.url))
	s.url = s.web(s.balancer.listener.Addr().String())
}

// keyFile returns the path of the key set. The replicas share it, because each must decrypt values that
// another one encrypted.
func (s *stack) keyFile() string { return filepath.Join(s.dir, "keyset.json") }
