package prober

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// bound is an address that refuses connections, and that nobody else can take, until listen.
func bound(t *testing.T) (address string, listen func()) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, err := unix.Getsockname(fd)
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(at.(*unix.SockaddrInet4).Port)), func() { require.NoError(t, unix.Listen(fd, 16)) }
}

func TestInstancesAreTriedUntilTheyAreReached(t *testing.T) {
	late, listen := bound(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()

	p := New(rand.Float64)
	route := upstream.New(upstream.Config{
		Now: time.Now, Random: rand.Uint64, Ejected: func(upstream.Ejection) {}, Drained: func(string) {},
		Arrived: p.Add, Proven: func() {},
	})
	put := func(instances ...upstream.InstanceSpec) {
		require.NoError(t, route.Update(upstream.Spec{AppID: "app", Hosts: []string{"a.test"}, Policy: upstream.DefaultPolicy(), Targets: []upstream.TargetSpec{{
			DeploymentID: "dep", Weight: 1, Instances: instances,
		}}}))
	}
	// What is there before it runs is tried, too.
	put(upstream.InstanceSpec{ID: "there", Address: l.Addr().String(), State: upstream.Ready},
		upstream.InstanceSpec{ID: "late", Address: late, State: upstream.Ready})
	require.Len(t, route.Health(), 2)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	is := func(want ...upstream.Health) func() bool {
		return func() bool {
			got := route.Health()
			if len(got) != len(want) {
				return false
			}
			for i := range want {
				if got[i] != want[i] {
					return false
				}
			}
			return true
		}
	}
	const patience, often = 30 * time.Second, 5 * time.Millisecond
	require.Eventually(t, is(upstream.Health{InstanceID: "late", Unproven: true, Ejected: true, Reason: "ConnectError"}), patience, often)
	listen()
	require.Eventually(t, is(), patience, often)

	// Whom nobody wants any more nobody tries.
	gone := "127.0.0.1:1"
	put(upstream.InstanceSpec{ID: "gone", Address: gone, State: upstream.Ready})
	put()
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}
