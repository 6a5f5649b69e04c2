package rpc

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/conns"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// allowed is the number of refused streams that a caller may open at once on one connection before the next stream
// waits. It includes the streams that become allowed while a test opens them.
const allowed = 256 + 3

func tooFast() error {
	return TooFast(5*time.Second, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED,
		Limit:  &windlassv1.LimitDetail{Name: "watchers", RetryAfterMs: 5_000},
	}, "the maximum number of watchers is reached")
}

// byToken admits every caller with a token.
func byToken(_ context.Context, call Call) (Admission, error) {
	token := call.Header.Get("Authorization")
	if token == "" {
		return Admission{}, errStranger
	}
	return Admission{Caller: token}, nil
}

// heldBack returns how many streams had to wait.
func heldBack(t *testing.T, table *conns.Table) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(conns.NewCollector(table))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "windlass_streams_held_back_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("there is no metric of streams that waited")
	return 0
}

func TestHoldBack(t *testing.T) {
	// watcher makes a connection, and returns a function that opens a stream on it.
	watcher := func(t *testing.T, f *harness, token string, options ...connect.ClientOption) func() error {
		client := NewHTTPClient(HTTPClientConfig{})
		t.Cleanup(client.CloseIdleConnections)
		apps := windlassv1connect.NewAppServiceClient(client, f.url, append(ClientOptions(ClientConfig{Token: func() string { return token }}), options...)...)
		return func() error {
			stream, err := apps.WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "echo"})
			if err != nil {
				return err
			}
			stream.Receive()
			return stream.Err()
		}
	}
	for name, options := range map[string][]connect.ClientOption{
		"Connect": nil, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()},
	} {
		t.Run(name, func(t *testing.T) {
			table := conns.New(conns.Limits{})
			var looped atomic.Bool
			gate := func(ctx context.Context, call Call) (Admission, error) {
				looped.Store(call.InLoop)
				return byToken(ctx, call)
			}
			f := setup(t, settings{Config: Config{Admit: gate, HoldBack: true}, table: table})
			f.watch = func(context.Context, func() error) error { return tooFast() }
			loop, other := watcher(t, f, "loop", options...), watcher(t, f, "other", options...)
			opened := 0
			var begin time.Time
			for heldBack(t, table) == 0 && opened < 2*allowed {
				begin = time.Now()
				requireError(t, loop(), connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_LIMIT_EXCEEDED, "")
				opened++
			}
			require.Greater(t, opened, allowed)
			require.EqualValues(t, 1, heldBack(t, table))
			require.GreaterOrEqual(t, time.Since(begin), 500*time.Millisecond)
			require.True(t, looped.Load(), "the gate sees that the caller is in a loop")

			looped.Store(false)
			require.Error(t, other())
			require.EqualValues(t, 1, heldBack(t, table), "another caller of the same address")
			require.False(t, looped.Load())
		})
	}
	t.Run("also counts streams that the gate refuses", func(t *testing.T) {
		table := conns.New(conns.Limits{})
		gate := func(_ context.Context, call Call) (Admission, error) {
			return Admission{Caller: call.Header.Get("Authorization")}, tooFast()
		}
		f := setup(t, settings{Config: Config{Admit: gate, HoldBack: true}, table: table})
		loop := watcher(t, f, "loop")
		for opened := 0; heldBack(t, table) == 0 && opened < 2*allowed; opened++ {
			require.Error(t, loop())
		}
		require.EqualValues(t, 1, heldBack(t, table))
	})
	t.Run("does not count unary calls and other errors, and counts nothing if it is off", func(t *testing.T) {
		table := conns.New(conns.Limits{})
		f := setup(t, settings{Config: Config{Admit: byToken, HoldBack: true}, table: table})
		f.get = func(context.Context, string) (*windlassv1.GetProjectResponse, error) { return nil, tooFast() }
		f.watch = func(context.Context, func() error) error { return errStranger }
		loop := watcher(t, f, "loop")
		projects := f.projects(ClientOptions(ClientConfig{Token: func() string { return "loop" }})...)
		for range allowed + 50 {
			_, err := projects.GetProject(t.Context(), echo)
			require.Error(t, err)
			require.Error(t, loop())
		}
		require.Zero(t, heldBack(t, table))

		table = conns.New(conns.Limits{})
		f = setup(t, settings{Config: Config{Admit: byToken}, table: table})
		f.watch = func(context.Context, func() error) error { return tooFast() }
		loop = watcher(t, f, "loop")
		for range allowed + 50 {
			require.Error(t, loop())
		}
		require.Zero(t, heldBack(t, table))
	})
}
