package storetest

import (
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
		app, other := w.app("chat"), w.app("other")
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

	t.Run("a region's newest decision is kept", func(t *testing.T) {
		w := setup(t)
		app := w.app("chat")
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
