package rollout_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestFreeze_OfDaysStartsARolloutAtItsEnd checks that the rollout starts by itself, to the second, with few steps
// before.
func TestFreeze_OfDaysStartsARolloutAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil, "us-east-1", "eu-west-1")
		h.runInMemory()
		app := h.newApp("chat")
		first := h.deploy(app, nil)
		h.awaitStatus(app, ready)
		h.requireAlone(app, first)
		until := time.Now().Add(4 * 24 * time.Hour)
		h.update(func(tx store.Tx) error {
			return tx.PutFreeze(model.Freeze{
				WorkspaceID: h.ws, Name: "christmas", Reason: "all are on leave", OnStart: windlassv1.Freeze_ON_START_HOLD, Until: until.UnixMilli(),
			})
		})
		second := h.deploy(app, nil)
		time.Sleep(time.Minute)
		steps := h.app(app).Step
		time.Sleep(time.Until(until) - time.Minute)
		require.Equal(t, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING, h.deployment(second).Status)
		require.Equal(t, "v2 is held by freeze christmas of the workspace, until "+until.UTC().Format("2006-01-02 15:04:05 UTC")+": all are on leave",
			h.app(app).Message)
		require.LessOrEqual(t, h.app(app).Step-steps, int64(4*24*12*4/3), "at most one step in 3 min 45 s")
		h.requireAlone(app, first)

		time.Sleep(time.Minute + 10*time.Second)
		h.awaitStatus(app, ready)
		h.requireAlone(app, second)
		h.view(func(tx store.Tx) error {
			rows, err := tx.HistorySince(app, "", 1000)
			require.NoError(t, err)
			for _, r := range rows {
				if r.What == "RolloutReleased" {
					require.WithinRange(t, time.UnixMilli(r.At), until, until.Add(10*time.Second))
					return nil
				}
			}
			t.Fatal("it was not released")
			return nil
		})
	})
}
