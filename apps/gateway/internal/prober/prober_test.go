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

// bindAddress returns an address that no other process can take. It refuses connections until
// listen is called.
func bindAddress(t *testing.T) (address string, listen func()) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, err := unix.Getsockname(fd)
	require.NoError(t, err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(at.(*unix.SockaddrInet4).Port)), func() { require.NoError(t, unix.Listen(fd, 16)) }
}

func TestProber_ProbesInstancesUntilTheyAreReached(t *testing.T) {
	late, listen := bindAddress(t)
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
	// Instances that are added before Run are probed, too.
	put(upstream.InstanceSpec{ID: "there", Address: l.Addr().String(), State: upstream.Ready},
		upstream.InstanceSpec{ID: "late", Address: late, State: upstream.Ready})
	require.Len(t, route.Health(), 2)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	healthIs := func(want ...upstream.Health) func() bool {
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
	require.Eventually(t, healthIs(upstream.Health{InstanceID: "late", Unproven: true, Ejected: true, Reason: "ConnectError"}), patience, often)
	listen()
	require.Eventually(t, healthIs(), patience, often)

	// An instance that was removed is not probed.
	gone := "127.0.0.1:1"
	put(upstream.InstanceSpec{ID: "gone", Address: gone, State: upstream.Ready})
	put()
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// A connection does not prove that the instance is ready, or that the address is still its own.
func TestProber_ProbesInstancesUntilTheyPassTheirCheck(t *testing.T) {
	var healthy atomic.Bool
	var passed, hung atomic.Int64
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/hangs":
			hung.Add(1)
			<-release
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/health", http.StatusFound)
		case !healthy.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			passed.Add(1)
		}
	}))
	defer server.Close()
	defer close(release)
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
	for n := range maxConcurrent {
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
	unproven := func() map[string]string {
		out := map[string]string{}
		for _, h := range route.Health() {
			if h.Unproven {
				out[h.InstanceID] = h.Reason
			}
		}
		return out
	}
	const patience, often = 30 * time.Second, 5 * time.Millisecond
	// Instances that do not answer do not keep the prober from probing other instances.
	require.Eventually(t, func() bool {
		f := unproven()
		return f["one"] == "GET /health answered 503 Service Unavailable" && f["two"] == "GET /moved answered 503 Service Unavailable"
	}, patience, often)
	require.EqualValues(t, maxConcurrent, hung.Load())
	healthy.Store(true)
	require.Eventually(t, func() bool { return len(unproven()) == maxConcurrent }, patience, often)
	require.EqualValues(t, 2, passed.Load(), "an instance that passed is not probed again")
}
