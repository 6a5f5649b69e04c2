package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

const many = 200

// crowd returns many deployments.
func crowd() (items []*agentv1.Item) {
	for n := range many {
		items = append(items, item(fmt.Sprintf("dep_%03d", n), 1, 1, apply))
	}
	return items
}

func (h *harness) appliedCount() (n int) {
	for _, a := range h.r.Applied() {
		if a.Phase == isApplied {
			n++
		}
	}
	return n
}

func TestOutage_AllKeysAreAppliedWithinTenSecondsOfItsEnd(t *testing.T) {
	for name, away := range map[string]error{
		"the API server":    &runtime.Rejection{Code: runtime.ReasonUnavailable, Message: "refused", Retryable: true},
		"the control plane": &runtime.Rejection{Code: runtime.ReasonSecretUnavailable, Message: "cannot get", Retryable: true},
		"the disk":          errors.New("no space left on device"),
	} {
		for _, lasts := range []time.Duration{3 * time.Second, 11 * time.Minute, 24*time.Hour + time.Minute} {
			t.Run(fmt.Sprint(name, " for ", lasts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rt := simulate()
					rt.fail = func(string) error { return away }
					g := start(t, rt)
					synctest.Wait() // the reconciler's first resynchronisation is over, and found no keys
					g.snapshot(1, crowd()...)
					time.Sleep(lasts)
					require.Zero(t, g.appliedCount())

					// Each key was tried once, and once at each resynchronisation. In addition,
					// there was one probe at a time, with at least a second between two probes.
					rounds := 1 + int(lasts/(5*time.Minute))
					probes := int(lasts / time.Second)
					require.LessOrEqual(t, rt.calls(), rounds*many+probes, "an outage costs as much as one key")

					rt.failWith(nil)
					time.Sleep(10 * time.Second)
					require.Equal(t, many, g.appliedCount())
					require.LessOrEqual(t, rt.calls(), many+1, "no key is tried twice when the outage ends")
				})
			})
		}
	}
}

func TestOutage_FailingKeyDelaysNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("not now")
		rt := simulate()
		rt.fail = func(string) error { return broken }
		g := start(t, rt)
		g.snapshot(1, crowd()...)
		time.Sleep(time.Hour)
		rt.failWith(func(id string) error {
			if id == "dep_000" || id == "dep_199" {
				return broken
			}
			return nil
		})
		time.Sleep(10 * time.Second)
		require.Equal(t, many-2, g.appliedCount())
		rt.calls()
		time.Sleep(time.Hour)
		require.Less(t, rt.calls(), int(time.Hour/(2*time.Second))+9*many, "two failing keys are tried one at a time, too")
		g.delta(item("dep_000", 1, 2, remove))
		rt.failWith(nil)
		time.Sleep(20 * time.Second)
		g.requireState("dep_199", 1, 1, isApplied, false)
		g.requireState("dep_000", 1, 2, isApplied, true)
	})
}

func TestOutage_FlappingDependencyIsProbedNoFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := simulate()
		var n atomic.Int64
		rt.fail = func(string) error {
			if n.Add(1)%3 == 0 {
				return nil
			}
			return errors.New("not now")
		}
		g := start(t, rt)
		g.snapshot(1, crowd()...)
		time.Sleep(4 * time.Minute) // up to the next resynchronisation, which tries all keys again
		require.Equal(t, many, g.appliedCount())
		require.Less(t, rt.calls(), 4*many)
	})
}

func TestOutage_ForgetsAKeyThatLeftTheInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := simulate()
		rt.fail = func(string) error { return errors.New("not now") }
		g := start(t, rt)
		g.snapshot(1, crowd()...)
		time.Sleep(time.Minute)
		g.snapshot(2, item("dep_new", 2, 1, apply))
		time.Sleep(time.Minute)
		rt.failWith(nil)
		time.Sleep(10 * time.Second)
		require.Equal(t, map[string]int{"dep_new": 1}, g.rt.Running())
		g.snapshot(3)
		time.Sleep(time.Minute)
		require.Empty(t, g.r.Applied())
	})
}

// blind is a runtime whose Observe can fail.
type blind struct {
	*spy
	away atomic.Bool
}

func (b *blind) Observe(ctx context.Context) (runtime.Observation, error) {
	if b.away.Load() {
		return runtime.Observation{}, errors.New("not now")
	}
	return b.spy.Observe(ctx)
}

func TestObservation_ThatFailsIsRepeatedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &blind{spy: simulate()}
		rt.away.Store(true)
		g := startWith(t, rt.spy, rt)
		g.snapshot(1, item("dep_1", 1, 1, apply))
		time.Sleep(time.Hour)
		_, ok := g.r.Observation()
		require.False(t, ok)
		rt.away.Store(false)
		time.Sleep(4 * time.Second)
		g.requireState("dep_1", 1, 1, isApplied, false)
	})
}
