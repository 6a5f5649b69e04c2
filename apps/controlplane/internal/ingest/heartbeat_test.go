package ingest_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestHeartbeat_KeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		defer h.stop()
		expired := func() (ids []string) {
			h.update(func(tx store.Tx) (err error) {
				ids, err = tx.ExpireLeases(time.Now().UnixMilli(), 10)
				return err
			})
			return ids
		}
		for sequence := range int64(40) {
			require.NoError(t, h.report(east, says(sequence+1)))
			time.Sleep(5 * time.Second)
		}
		require.Equal(t, []string{west}, expired(), "the silent region")
		require.EqualValues(t, 40, h.row().ReceivedRevision)

		h.session(east, "session-2")
		lease := h.row().LeaseExpiresAt
		for range 3 {
			_ = h.report(east, says(41))
			time.Sleep(6 * time.Second)
		}
		require.Equal(t, lease, h.row().LeaseExpiresAt, "a replaced session does not renew the lease")
		require.Equal(t, []string{east}, expired())
	})
}

func TestHeartbeat_DoesNotHideReportsThatARestoredDatabaseLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		defer h.stop()
		require.NoError(t, h.report(east, says(1, counts("dep_1", 1))))
		backup := h.db.Clone()
		require.NoError(t, h.report(east, says(2, counts("dep_1", 0))))
		h.db.Restore(backup)

		beat := func(sequence int64) error {
			r := says(sequence)
			r.PreviousSequence = 2
			return h.report(east, r)
		}
		require.NoError(t, beat(3), "the session is cached, and its lease is renewed later")
		time.Sleep(5 * time.Second)
		require.EqualValues(t, 1, h.row().SessionSequence, "the stored sequence stays low")
		require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, rpc.ReasonOf(beat(4)), "the agent must report everything again")
		require.EqualValues(t, 1, h.observed().Ready)
	})
}

func TestHeartbeat_OfARegionThatReturnsWakesItsApps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		defer h.stop()
		require.NoError(t, h.report(east, says(1)))
		time.Sleep(2 * ttl)
		h.update(func(tx store.Tx) error {
			_, err := tx.ExpireLeases(time.Now().UnixMilli(), 10)
			return errors.Join(err, tx.GrantRegion(east, "ws_1", 1), tx.InsertNotificationEndpoint(model.NotificationEndpoint{
				ID: "nte_1", WorkspaceID: "ws_1", Name: "pager", Kinds: model.AllNotificationKinds(),
			}))
		})
		require.Empty(t, h.woken())
		for sequence := range int64(2) { // at the second report, the region is already back
			require.NoError(t, h.report(east, says(2+sequence)))
			synctest.Wait()
		}
		require.Equal(t, []string{"app_1"}, h.woken())
		h.update(func(tx store.Tx) error {
			told, err := tx.ListDeliveries("nte_1", -1, store.Page{})
			require.Len(t, told, 1)
			require.Equal(t, []any{model.NotifyRegionBack, int32(1)}, []any{told[0].Kind, told[0].Apps})
			return err
		})
	})
}

func TestReport_AfterALostReportIsRefused(t *testing.T) {
	h := setup(t)
	require.NoError(t, h.report(east, says(1, counts("dep_1", 1))))
	lost := says(3, counts("dep_1", 0))
	lost.PreviousSequence = 2
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, rpc.ReasonOf(h.report(east, lost)))
	require.EqualValues(t, 1, h.observed().ReadyReplicas)
}
