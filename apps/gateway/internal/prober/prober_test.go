package prober

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
	"github.com/windlass-run/windlass/pkg/healthcheck"
)

// bound returns an address that no other process can take, and that refuses connections until
// listen.
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

	// An instance that is not wanted any more is not tried.
	gone := "127.0.0.1:1"
	put(upstream.InstanceSpec{ID: "gone", Address: gone, State: upstream.Ready})
	put()
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// What takes connections is not always the instance that was meant, or ready.
func TestInstancesAreAskedUntilTheyPassTheirCheck(t *testing.T) {
	var well atomic.Bool
	var asked, hung atomic.Int64
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/hangs":
			hung.Add(1)
			<-over
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/health", http.StatusFound)
		case !well.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			asked.Add(1)
		}
	}))
	defer server.Close()
	defer close(over)
	p := New(rand.Float64)
	route := upstream.New(upstream.Config{
		Now: time.Now, Random: rand.Uint64, Ejected: func(upstream.Ejection) {}, Drained: func(string) {},
		Arrived: p.Add, Proven: func() {},
	})
	check := func(path string) *healthcheck.Check {
		return &healthcheck.Check{Method: http.MethodGet, Path: path, Timeout: time.Hour}
	}
	at := server.Listener.Addr().String()
	var instances []upstream.InstanceSpec
	for n := range atOnce {
		instances = append(instances, upstream.InstanceSpec{ID: fmt.Sprintf("hangs-%02d", n), Address: at, State: upstream.Ready, Check: check("/hangs")})
	}
	instances = append(instances, upstream.InstanceSpec{ID: "one", Address: at, State: upstream.Ready, Check: check("/health")},
		upstream.InstanceSpec{ID: "two", Address: at, State: upstream.Ready, Check: check("/moved")})
	require.NoError(t, route.Update(upstream.Spec{AppID: "app", Hosts: []string{"a.test"}, Policy: upstream.DefaultPolicy(), Targets: []upstream.TargetSpec{{
		DeploymentID: "dep", Weight: 1, Instances: instances,
	}}}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
	}()
	found := func() map[string]string {
		out := map[string]string{}
		for _, h := range route.Health() {
			if h.Unproven {
				out[h.InstanceID] = h.Reason
			}
		}
		return out
	}
	const patience, often = 30 * time.Second, 5 * time.Millisecond
	// Instances that do not answer are waited for, and do not keep others from being asked.
	require.Eventually(t, func() bool {
		f := found()
		return f["one"] == "GET /health answered 503 Service Unavailable" && f["two"] == "GET /moved answered 503 Service Unavailable"
	}, patience, often)
	require.EqualValues(t, atOnce, hung.Load())
	well.Store(true)
	require.Eventually(t, func() bool { return len(found()) == atOnce }, patience, often)
	require.EqualValues(t, 2, asked.Load(), "who has passed is asked no more")
}
