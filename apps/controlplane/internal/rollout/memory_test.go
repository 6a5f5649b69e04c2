package rollout_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/rollouttest"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

type memoryHarness struct{ t testing.TB }

func (h memoryHarness) Start(step rollout.Step) rollouttest.Process {
	var dead atomic.Bool
	m := rollout.NewMemory(step, discard())
	h.t.Cleanup(m.Close)
	return rollouttest.Process{
		Driver: mortal{m, &dead},
		Crash:  func() { dead.Store(true); m.Close() },
	}
}

// mortal refuses to send once its process is dead.
type mortal struct {
	rollout.Driver
	dead *atomic.Bool
}

func (m mortal) Wake(ctx context.Context, ids []string) error {
	if m.dead.Load() {
		return errors.New("the process is dead")
	}
	return m.Driver.Wake(ctx, ids)
}

func TestMemoryDriver_KeepsTheContract(t *testing.T) {
	rollouttest.Run(t, func(t testing.TB) rollouttest.Harness { return memoryHarness{t} },
		func(t *testing.T, part func(t *testing.T)) { synctest.Test(t, part) })
}
