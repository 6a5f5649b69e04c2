package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const terminated = windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED

func testInstances(t *testing.T, setup setup) {
	put := func(w *fixture, rows ...model.Instance) {
		w.t.Helper()
		w.update(func(tx store.Tx) error { return tx.PutInstances(rows) })
	}
	get := func(w *fixture, id string) model.Instance {
		w.t.Helper()
		return read(w, func(tx store.Tx) (model.Instance, error) { return tx.GetInstance(w.ws, id) })
	}
	ended := func(i model.Instance) model.Instance {
		i.Status = terminated
		return i
	}

	t.Run("a stale guard never wins", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		d := w.insertDeployment(w.insertApp("chat"), 1)
		put(w, newInstance(d, region, "ins_1", 5), newInstance(d, region, "ins_2", 5))
		put(w, newInstance(d, region, "ins_1", 4), newInstance(d, region, "ins_2", 6))
		equal := newInstance(d, region, "ins_1", 5)
		equal.Message = "the same guard again"
		put(w, equal)
		require.Equal(t, newInstance(d, region, "ins_1", 5), get(w, "ins_1"))
		require.Equal(t, newInstance(d, region, "ins_2", 6), get(w, "ins_2"))
	})

	t.Run("a region never writes over another's instance", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(2)
		d := w.insertDeployment(w.insertApp("chat"), 1)
		put(w, newInstance(d, ids[0], "ins_1", 5))
		put(w, newInstance(d, ids[1], "ins_1", 99))
		require.Equal(t, newInstance(d, ids[0], "ins_1", 5), get(w, "ins_1"))
	})

	t.Run("a batch of thousands is stored whole", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		d := w.insertDeployment(w.insertApp("chat"), 1)
		var rows []model.Instance
		for i := range 2500 {
			rows = append(rows, newInstance(d, region, fmt.Sprintf("ins_%05d", i), 1))
		}
		put(w, rows...)
		require.Equal(t, map[string]int{region: len(rows)}, read(w, func(tx store.Tx) (map[string]int, error) {
			return tx.CountInstances([]string{region})
		}))
		put(w)
	})

	t.Run("default values replace other values", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		d := w.insertDeployment(w.insertApp("chat"), 1)
		usual := func(id string, guard model.Guard) model.Instance {
			return model.Instance{
				ID: id, WorkspaceID: d.WorkspaceID, AppID: d.AppID, DeploymentID: d.ID, RegionID: region, Role: "main",
				Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY, GPUs: []string{}, Guard: guard, UpdatedAt: now,
			}
		}
		unusual := usual("ins_1", 2)
		unusual.Role, unusual.Group, unusual.Slot, unusual.Status = "worker", 1, 2, terminated
		unusual.Reason, unusual.Message, unusual.Address, unusual.RuntimeName = "OOMKilled", awkward, "127.0.0.1:8000", "pod-1"
		unusual.Restarts, unusual.GPUs, unusual.StartedAt, unusual.ReadyAt = 3, []string{"GPU-1", "GPU-'2"}, now, now+1
		stored := func(want ...model.Instance) {
			t.Helper()
			require.Equal(t, want, read(w, func(tx store.Tx) ([]model.Instance, error) {
				return tx.ListInstances(store.InstanceFilter{IncludeTerminated: true}, store.Page{Limit: 99})
			}))
		}
		put(w, usual("ins_1", 1))
		stored(usual("ins_1", 1))
		put(w, unusual)
		stored(unusual)
		put(w, usual("ins_1", 3))
		stored(usual("ins_1", 3))
		unusual.Guard = 4
		put(w, usual("ins_2", 4), unusual)
		stored(unusual, usual("ins_2", 4))
		living := read(w, func(tx store.Tx) (map[string]int, error) { return tx.CountInstances([]string{region}) })
		require.Equal(t, map[string]int{region: 1}, living)
	})

	t.Run("a filter's empty fields mean any", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(2)
		app, other := w.insertApp("chat"), w.insertApp("other")
		d1, d2, d3 := w.insertDeployment(app, 1), w.insertDeployment(app, 2), w.insertDeployment(other, 1)
		rows := []model.Instance{
			newInstance(d1, ids[0], "ins_1", 1), newInstance(d1, ids[1], "ins_2", 1), newInstance(d2, ids[0], "ins_3", 1),
			newInstance(d3, ids[0], "ins_4", 1), ended(newInstance(d1, ids[0], "ins_5", 1)),
		}
		put(w, rows...)
		for _, c := range []struct {
			f    store.InstanceFilter
			want []int
		}{
			{store.InstanceFilter{}, []int{1, 2, 3, 4}},
			{store.InstanceFilter{IncludeTerminated: true}, []int{1, 2, 3, 4, 5}},
			{store.InstanceFilter{WorkspaceID: w.ws, AppID: app.ID}, []int{1, 2, 3}},
			{store.InstanceFilter{AppID: app.ID, RegionID: ids[0], IncludeTerminated: true}, []int{1, 3, 5}},
			{store.InstanceFilter{DeploymentID: d1.ID}, []int{1, 2}},
			{store.InstanceFilter{WorkspaceID: w.ws, RegionID: ids[0]}, []int{1, 3, 4}},
			{store.InstanceFilter{WorkspaceID: "ws_x"}, nil},
		} {
			var want []model.Instance
			for _, n := range c.want {
				want = append(want, rows[n-1])
			}
			got := read(w, func(tx store.Tx) ([]model.Instance, error) { return tx.ListInstances(c.f, store.Page{Limit: 99}) })
			if len(want) == 0 {
				require.Empty(t, got)
				continue
			}
			require.Equal(t, want, got, "%+v", c.f)
		}
		require.Equal(t, map[string]int{ids[0]: 3, ids[1]: 1}, read(w, func(tx store.Tx) (map[string]int, error) { return tx.CountInstances(ids) }))
		require.Equal(t, map[windlassv1.InstanceStatus]int{windlassv1.InstanceStatus_INSTANCE_STATUS_READY: 4, terminated: 1},
			read(w, store.Tx.CountInstancesByStatus))
	})

	t.Run("only instances that a complete inventory did not name are lost", func(t *testing.T) {
		w := setup(t)
		ids := w.newRegions(2)
		app := w.insertApp("chat")
		d1, d2 := w.insertDeployment(app, 1), w.insertDeployment(app, 2)
		named, past, elsewhere := newInstance(d1, ids[0], "ins_2", 10), ended(newInstance(d2, ids[0], "ins_3", 2)), newInstance(d2, ids[1], "ins_4", 1)
		put(w, newInstance(d1, ids[0], "ins_1", 9), named, past, elsewhere)
		lost := func() []string {
			return write(w, func(tx store.Tx) ([]string, error) { return tx.MarkLost(ids[0], 10, now+5) })
		}
		require.Equal(t, []string{d1.ID}, lost())
		got := get(w, "ins_1")
		require.Equal(t, terminated, got.Status)
		require.Equal(t, "Lost", got.Reason)
		require.Equal(t, now+5, got.UpdatedAt)
		require.Equal(t, named, get(w, "ins_2"))
		require.Equal(t, past, get(w, "ins_3"))
		require.Equal(t, elsewhere, get(w, "ins_4"))
		require.Empty(t, lost())
		// It was not lost after all: its next report has a higher guard.
		put(w, newInstance(d1, ids[0], "ins_1", 11))
		require.Equal(t, newInstance(d1, ids[0], "ins_1", 11), get(w, "ins_1"))
	})

	t.Run("only terminated rows past retention are deleted and up to the limit", func(t *testing.T) {
		w := setup(t)
		region := w.newRegion("eu")
		d := w.insertDeployment(w.insertApp("chat"), 1)
		for n := range 5 {
			i := ended(newInstance(d, region, fmt.Sprintf("ins_%d", n), 1))
			i.UpdatedAt = now + int64(n)
			put(w, i)
		}
		put(w, newInstance(d, region, "ins_living", 1))
		forget := func() int {
			return write(w, func(tx store.Tx) (int, error) { return tx.DeleteInstances(now+3, 2) })
		}
		require.Equal(t, 2, forget())
		require.Equal(t, 1, forget())
		require.Equal(t, 0, forget())
		var left []string
		for _, i := range read(w, func(tx store.Tx) ([]model.Instance, error) {
			return tx.ListInstances(store.InstanceFilter{IncludeTerminated: true}, store.Page{Limit: 99})
		}) {
			left = append(left, i.ID)
		}
		require.Equal(t, []string{"ins_3", "ins_4", "ins_living"}, left)
	})
}
