package reconcile

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// of gives the item a workload.
func of(workload string, it *agentv1.Item) *agentv1.Item {
	it.GetDeployment().WorkloadKey = workload
	return it
}

func TestTransfer_RemovesOnceTheSuccessorIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := simulate()
		g := start(t, rt)
		const apps = 50
		var before, after []*agentv1.Item
		for i := range apps {
			// Keys are worked on in the order of their names, so the removal comes first.
			old, successor := fmt.Sprintf("a_%02d", i), fmt.Sprintf("b_%02d", i)
			before = append(before, of(old, item(old, 1, 1, apply)))
			after = append(after, of(old, item(old, 1, 2, remove)), of(old, item(successor, 1, 1, apply)))
		}
		g.snapshot(1, before...)
		time.Sleep(time.Second)
		rt.failWith(func(string) error {
			return &runtime.Rejection{Code: runtime.ReasonUnavailable, Message: "not yet", Retryable: true}
		})
		g.delta(after...)
		time.Sleep(30 * time.Second)
		for i := range apps {
			old := fmt.Sprintf("a_%02d", i)
			g.requireState(old, 1, 2, isPending, false)
			require.Equal(t, "Adopting", g.state(old).Code)
			require.Equal(t, 1, rt.Running()[old])
		}
		rt.failWith(nil)
		time.Sleep(2 * time.Minute)
		for i := range apps {
			g.requireState(fmt.Sprintf("a_%02d", i), 1, 2, isApplied, true)
			g.requireState(fmt.Sprintf("b_%02d", i), 1, 1, isApplied, false)
		}
	})
}

func TestRemoval_ContinuesWhenItsSuccessorIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := simulate()
		g := start(t, rt)
		g.snapshot(1, of("a", item("a", 1, 1, apply)))
		time.Sleep(time.Second)
		rt.failWith(func(string) error { return errors.New("broken") })
		g.delta(of("a", item("a", 1, 2, remove)), of("a", item("b", 1, 1, apply)))
		time.Sleep(time.Minute)
		g.requireState("a", 1, 2, isPending, false)
		g.delta(of("a", item("b", 1, 2, remove)))
		time.Sleep(15 * time.Second)
		g.requireState("a", 1, 2, isApplied, true)
		g.requireState("b", 1, 2, isApplied, true)
		require.Empty(t, rt.Running())
	})
}

func TestTransfer_BackToThePredecessorEndsItsRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := simulate()
		g := start(t, rt)
		g.snapshot(1, of("a", item("a", 1, 1, apply)))
		time.Sleep(time.Second)
		rt.failWith(func(id string) error {
			if id == "b" {
				return &runtime.Rejection{Code: runtime.ReasonUnschedulable, Message: "never"}
			}
			return nil
		})
		g.delta(of("a", item("a", 1, 2, remove)), of("a", item("b", 1, 1, apply)))
		time.Sleep(time.Minute)
		require.Equal(t, 1, rt.Running()["a"], "a serving instance is not stopped for a deployment that cannot take over")
		back := of("a", item("a", 1, 3, apply))
		back.GetDeployment().Deployment.Replicas = 1
		g.delta(back, of("a", item("b", 1, 2, remove)))
		time.Sleep(time.Minute)
		g.requireState("a", 1, 3, isApplied, false)
		g.requireState("b", 1, 2, isApplied, true)
		require.Equal(t, map[string]int{"a": 1}, rt.Running())
	})
}

func transferred(it *agentv1.Item) *agentv1.Item {
	it.GetDeployment().HandedOver = true
	return it
}

func TestTransfer_StaysUntilItsSuccessorArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, simulate())
		g.snapshot(1, of("a", item("a", 1, 1, apply)))
		time.Sleep(time.Second)
		before := g.rt.Ready()["a"]
		g.delta(transferred(of("a", item("a", 1, 2, remove))))
		time.Sleep(time.Hour)
		g.requireState("a", 1, 2, isPending, false)
		require.Equal(t, "Adopting", g.state("a").Code)
		require.True(t, g.in.Asked())
		g.delta(of("a", item("b", 1, 1, apply)))
		time.Sleep(time.Second)
		g.requireState("a", 1, 2, isApplied, true)
		g.requireState("b", 1, 1, isApplied, false)
		require.Equal(t, map[string][]string{"b": before}, g.rt.Ready())
		require.False(t, g.in.Asked())
	})
}

func TestTransfer_SnapshotWithoutSuccessorRemovesTheWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, simulate())
		g.snapshot(1, of("a", item("a", 1, 1, apply)))
		time.Sleep(time.Second)
		gone := transferred(of("a", item("a", 1, 2, remove)))
		g.delta(gone)
		time.Sleep(time.Minute)
		require.Equal(t, 1, g.rt.Running()["a"])
		g.snapshot(1, gone)
		time.Sleep(15 * time.Second)
		g.requireState("a", 1, 2, isApplied, true)
		require.Empty(t, g.rt.Running())
	})
}

func TestTransfer_RemovalOfTheSuccessorRemovesTheWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, simulate())
		g.snapshot(1, of("a", item("a", 1, 1, apply)))
		time.Sleep(time.Second)
		g.delta(transferred(of("a", item("a", 1, 2, remove))))
		time.Sleep(time.Second)
		g.delta(of("a", item("b", 1, 2, remove)))
		time.Sleep(15 * time.Second)
		g.requireState("a", 1, 2, isApplied, true)
		g.requireState("b", 1, 2, isApplied, true)
		require.Empty(t, g.rt.Running())
	})
}

func TestTransfer_WaitsWhileThereAreTwoSuccessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, simulate())
		g.snapshot(1, of("b", item("b", 1, 1, apply)))
		time.Sleep(time.Second)
		before := g.rt.Ready()["b"]
		g.rt.calls()
		g.delta(of("b", item("a", 1, 1, apply)))
		time.Sleep(time.Hour)
		require.Zero(t, g.rt.calls())
		g.requireState("a", 1, 1, isPending, false)
		g.requireState("b", 1, 1, isApplied, false)
		g.delta(transferred(of("b", item("b", 1, 2, remove))))
		time.Sleep(time.Second)
		require.Equal(t, map[string][]string{"a": before}, g.rt.Ready())
		g.requireState("b", 1, 2, isApplied, true)
	})
}
