package storetest

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func testScaling(t *testing.T, setup setup) {
	t.Run("an app's scaling is what was put last", func(t *testing.T) {
		w := setup(t)
		app, other := w.insertApp("chat"), w.insertApp("other")
		get := func() []model.Scaling {
			return read(w, func(tx store.Tx) ([]model.Scaling, error) { return tx.GetScalings([]string{app.ID, "app_none"}) })
		}
		require.Empty(t, get())
		s := model.Scaling{
			AppID: app.ID, WorkspaceID: w.ws, UpdatedAt: now, Policy: &windlassv1.ScalingPolicy{Max: 4},
			Holds: []model.ScalingHold{{RegionID: "reg_1", Replicas: 3, Until: now + 1, Who: "ann"}},
		}
		w.update(func(tx store.Tx) error { return tx.PutScaling(model.Scaling{AppID: other.ID, WorkspaceID: w.ws}) })
		w.update(func(tx store.Tx) error { return tx.PutScaling(s) })
		got := get()
		require.Len(t, got, 1)
		require.True(t, proto.Equal(s.Policy, got[0].Policy))
		require.Equal(t, s.Holds, got[0].Holds)
		s.Policy, s.Holds = nil, nil
		w.update(func(tx store.Tx) error { return tx.PutScaling(s) })
		require.Equal(t, []model.Scaling{s}, get())
	})

	t.Run("what a region may raise alone comes with its deployments", func(t *testing.T) {
		w := setup(t)
		own, shared := "reg_own", "reg_shared"
		app := w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		w.update(func(tx store.Tx) error {
			return errors.Join(tx.InsertRegion(model.Region{ID: shared, Name: "shared"}), tx.InsertRegion(model.Region{ID: own, WorkspaceID: w.ws, Name: "own"}))
		})
		w.put(newTopology(d, own, 1), newTopology(d, shared, 1))
		facts := func(region string) model.AloneFacts {
			items := read(w, func(tx store.Tx) ([]model.DesiredItem, error) {
				return tx.DesiredItems(model.KindDeployment, map[string][]string{region: {d.ID}})
			})
			require.Len(t, items, 1)
			var paged []model.DesiredItem
			read(w, func(tx store.Tx) (struct{}, error) {
				return struct{}{}, tx.EachDesired(region, 10, func(page []model.DesiredItem) error {
					paged = append(paged, page...)
					return nil
				})
			})
			require.Equal(t, items[0].Alone, paged[0].Alone)
			return items[0].Alone
		}
		require.Zero(t, facts(shared), "the app is not scaled")
		s := model.Scaling{AppID: app.ID, WorkspaceID: w.ws, UpdatedAt: now, Policy: &windlassv1.ScalingPolicy{Max: 4}}
		w.update(func(tx store.Tx) error { return tx.PutScaling(s) })
		require.Equal(t, model.AloneFacts{Instances: model.Inherit, GPUs: model.Inherit}, facts(own))
		require.Equal(t, model.AloneFacts{Instances: model.Inherit, GPUs: model.Inherit, Closed: true}, facts(shared))
		s.Holds = []model.ScalingHold{{RegionID: own, Replicas: 3, Until: now + 1, Who: "ann"}}
		w.update(func(tx store.Tx) error {
			limits := model.NoLimitsOfItsOwn
			limits.Instances, limits.GPUs = 7, 0
			a := model.Admission{WorkspaceID: w.ws, Own: limits, Ceiling: model.Ceiling{Usage: model.Usage{Apps: 9, Instances: 5, GPUs: 3}, CountedAt: 4}}
			return errors.Join(tx.PutScaling(s), tx.GrantRegion(shared, w.ws, now), tx.PutLimits(a), tx.PutStanding(a))
		})
		require.Equal(t, model.AloneFacts{
			Holds: s.Holds, Instances: 7, Ceiling: model.Ceiling{Usage: model.Usage{Instances: 5, GPUs: 3}, CountedAt: 4},
		}, facts(shared))
	})

	t.Run("loads are kept by their begin, and deleted by it", func(t *testing.T) {
		w := setup(t)
		app, other := w.insertApp("chat"), w.insertApp("other")
		chunk := func(appID, region, role string, began int64, text string) model.LoadChunk {
			return model.LoadChunk{AppID: appID, RegionID: region, Role: role, WorkspaceID: w.ws, BeganAt: began, Samples: []byte(text)}
		}
		w.update(func(tx store.Tx) error { return tx.PutScalingLoads(nil) })
		w.update(func(tx store.Tx) error {
			return tx.PutScalingLoads([]model.LoadChunk{
				chunk(app.ID, "reg_1", "", 3, "third"), chunk(app.ID, "reg_1", "", 1, "first"), chunk(app.ID, "reg_1", "decode", 2, "of a role"),
				chunk(app.ID, "reg_2", "", 2, "of another region"), chunk(other.ID, "reg_1", "", 2, "of another app"),
			})
		})
		w.update(func(tx store.Tx) error {
			return tx.PutScalingLoads([]model.LoadChunk{chunk(app.ID, "reg_1", "", 3, "grown")})
		})
		list := func(region, role string, since int64) []model.LoadChunk {
			return read(w, func(tx store.Tx) ([]model.LoadChunk, error) { return tx.ListScalingLoads(app.ID, region, role, since) })
		}
		require.Equal(t, []model.LoadChunk{chunk(app.ID, "reg_1", "", 1, "first"), chunk(app.ID, "reg_1", "", 3, "grown")}, list("reg_1", "", 0))
		require.Equal(t, []model.LoadChunk{chunk(app.ID, "reg_1", "", 3, "grown")}, list("reg_1", "", 2))
		require.Equal(t, []model.LoadChunk{chunk(app.ID, "reg_1", "decode", 2, "of a role")}, list("reg_1", "decode", 0))
		require.Equal(t, []model.LoadChunk{chunk(app.ID, "reg_2", "", 2, "of another region")}, list("reg_2", "", 0))
		for _, want := range []int{2, 2, 0} {
			require.Equal(t, want, write(w, func(tx store.Tx) (int, error) { return tx.DeleteScalingLoads(3, 2) }))
		}
		require.Equal(t, []model.LoadChunk{chunk(app.ID, "reg_1", "", 3, "grown")}, list("reg_1", "", 0))
	})

	t.Run("a region's newest decision is kept", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		for i, region := range []string{"reg_2", "reg_1", "reg_2"} {
			w.update(func(tx store.Tx) error {
				return tx.PutScalingDecision(model.ScalingDecision{
					AppID: app.ID, RegionID: region, WorkspaceID: w.ws, DecidedAt: now, Decision: &windlassv1.RegionScaling{Wanted: int32(i)},
				})
			})
		}
		got := read(w, func(tx store.Tx) ([]model.ScalingDecision, error) { return tx.ListScalingDecisions(app.ID) })
		require.Len(t, got, 2)
		require.Equal(t, "reg_1", got[0].RegionID)
		require.EqualValues(t, 2, got[1].Decision.Wanted)
	})
}
