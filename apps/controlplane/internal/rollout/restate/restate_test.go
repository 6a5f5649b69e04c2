package restate

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/rollouttest"
	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

// harness runs control planes over one Restate, one after the other. Each process listens at
// another address, as after a restart on a machine where the port is taken.
type harness struct {
	t              testing.TB
	ingress, admin string
	service        string
}

func newHarness(t testing.TB) *harness {
	ingress, admin := stacktest.Restate(t)
	return &harness{t: t, ingress: ingress, admin: admin, service: ident.New("App")}
}

func testLog(t testing.TB) *slog.Logger {
	w := io.Discard
	if os.Getenv("WINDLASS_TEST_VERBOSE") != "" {
		w = t.Output()
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type process struct {
	*Driver
	dead  *atomic.Bool
	lost  *atomic.Int64
	crash func()
}

func (h *harness) start(step rollout.Step) process { return h.startVersion(step, handlersVersion) }

func (h *harness) startVersion(step rollout.Step, version string) process {
	ctx, cancel := context.WithCancel(context.Background())
	var lost atomic.Int64
	d, err := newVersion(Config{
		Lost: func(context.Context) error { lost.Add(1); return nil },
		// A dead process runs nothing: its steps end with it.
		Step: func(run context.Context, id string) error {
			run, stop := context.WithCancel(run)
			defer stop()
			defer context.AfterFunc(ctx, stop)()
			return step(run, id)
		},
		Ingress: []string{h.ingress}, Admin: []string{h.admin}, Listen: "127.0.0.1:0", Service: h.service, Log: testLog(h.t),
		ReconcileEvery: 300 * time.Millisecond,
	}, version)
	require.NoError(h.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = d.Run(ctx) // it returns an error when its server is closed
	}()
	var dead atomic.Bool
	crash := func() {
		dead.Store(true)
		_ = d.server.Close()
		cancel()
		<-done
	}
	h.t.Cleanup(crash)
	return process{Driver: d, dead: &dead, lost: &lost, crash: crash}
}

func (h *harness) Start(step rollout.Step) rollouttest.Process {
	p := h.start(step)
	await(h.t, "it is registered", func() bool { return p.Check(context.Background()) == nil })
	await(h.t, "it is ready", func() bool { return p.Ready(context.Background()) == nil })
	return rollouttest.Process{Driver: p, Crash: p.crash}
}

// Wake fails if the process is dead. Otherwise it waits for the registration.
func (p process) Wake(ctx context.Context, ids []string) error {
	if p.dead.Load() {
		return errors.New("the process is dead")
	}
	return p.Driver.Wake(ctx, ids)
}

func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in time", what)
		}
	}
}

func TestDriver_KeepsTheContract(t *testing.T) {
	rollouttest.Run(t, func(t testing.TB) rollouttest.Harness { return newHarness(t) },
		func(t *testing.T, part func(t *testing.T)) { part(t) })
}

func portOf(t testing.TB, raw string) int {
	u, err := url.Parse(raw)
	require.NoError(t, err)
	port, err := strconv.Atoi(u.Port())
	require.NoError(t, err)
	return port
}

// At the limit, a connection without a request is closed for a new one.
func TestDriver_LimitsConnections(t *testing.T) {
	t.Parallel()
	table := conns.New(conns.Limits{Total: 1})
	d, err := New(Config{
		Ingress: []string{"http://127.0.0.1:8080"}, Admin: []string{"http://127.0.0.1:9070"}, Listen: "127.0.0.1:0", Log: testLog(t), Conns: table,
		Step: func(context.Context, string) error { return nil }, Lost: func(context.Context) error { return nil },
	})
	require.NoError(t, err)
	go func() { _ = d.server.Serve(d.listener) }()
	defer d.server.Close()
	first, err := net.Dial("tcp", d.listener.Addr().String())
	require.NoError(t, err)
	defer first.Close()
	require.Eventually(t, func() bool { open, _, _ := table.Figures(); return open == 1 }, time.Minute, time.Millisecond)
	second, err := net.Dial("tcp", d.listener.Addr().String())
	require.NoError(t, err)
	defer second.Close()
	_, err = first.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, _, shed := table.Figures()
	require.Equal(t, int64(1), shed)
}
