package ingest_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// history returns the history of app_1, the newest entry first.
func (h *harness) history() []model.History {
	return read(h, func(tx store.Tx) ([]model.History, error) {
		return tx.ListHistory("ws_1", "app_1", store.Page{Limit: 1000})
	})
}

func drift(deployment, object string, times int32, at time.Time) *agentv1.Notice {
	return &agentv1.Notice{
		Kind: agentv1.Notice_KIND_DRIFT, DeploymentId: deployment, Object: object, Message: "somebody removed it; it was made again",
		Times: times, At: at.UnixMilli(),
	}
}

func notices(all ...*agentv1.Notice) func(*agentv1.ReportRequest) {
	return func(r *agentv1.ReportRequest) { r.Notices = all }
}

func TestNotices_AreStoredInTheHistoryOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		before := time.Now().Add(-time.Minute)
		first := says(1, notices(drift("dep_1", "Service shop/chat-v1", 1, before)))
		require.NoError(t, h.report(east, first))
		require.NoError(t, h.report(east, first), "a repeated report")
		rows := h.history()
		require.Len(t, rows, 1)
		require.NotEmpty(t, rows[0].ID)
		rows[0].ID = ""
		require.Equal(t, model.History{
			WorkspaceID: "ws_1", AppID: "app_1", DeploymentID: "dep_1", Version: 1, RegionID: east, At: before.UnixMilli(),
			What: "Drift", Why: "Service shop/chat-v1: somebody removed it; it was made again", Who: "agent",
		}, rows[0])
		require.Empty(t, h.woken(), "notices wake no app")

		// A report with only notices counts in the sequence, so the heartbeat after it is accepted.
		require.NoError(t, h.report(east, says(2)))
		newer := &agentv1.Notice{Kind: 99, DeploymentId: "dep_1", Object: "Pod shop/x", Message: strings.Repeat("ä", 2000), Times: 7, At: time.Now().Add(time.Hour).UnixMilli()}
		require.NoError(t, h.report(east, says(3, notices(newer))))
		last := h.history()[0]
		require.Equal(t, "Notice", last.What, "an unknown kind of a later release")
		require.Equal(t, time.Now().UnixMilli(), last.At, "a time in the future is replaced by now")
		require.LessOrEqual(t, len(last.Why), 1024)
		require.True(t, strings.HasSuffix(last.Why, "ä (the last of 7 times)"), last.Why)

		// A replaced session, and a deployment that was never assigned to the region.
		old := says(4, notices(drift("dep_1", "Service shop/late", 1, before)))
		old.SessionId = "session-0"
		require.Error(t, h.report(east, old))
		require.NoError(t, h.report(east, says(4, notices(drift("dep_2", "Service shop/theirs", 1, before)))))
		require.Len(t, h.history(), 2)
		require.Empty(t, read(h, func(tx store.Tx) ([]model.History, error) {
			return tx.ListHistory("ws_2", "app_2", store.Page{Limit: 9})
		}))
	})
}

func TestNotices_NumberInTheHistoryIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		many := func(n int) func(*agentv1.ReportRequest) {
			var all []*agentv1.Notice
			for i := range n {
				all = append(all, drift("dep_1", fmt.Sprintf("Service shop/s-%d", i), 1, time.Now()))
			}
			return notices(all...)
		}
		require.NoError(t, h.report(east, says(1, many(100))))
		rows := h.history()
		require.Len(t, rows, 30)
		require.Contains(t, rows[0].Why, "s-99:", "the newest notices are stored")
		require.NoError(t, h.report(east, says(2, many(5))))
		require.Len(t, h.history(), 30)
		time.Sleep(2 * time.Minute)
		require.NoError(t, h.report(east, says(3, many(5))))
		require.Len(t, h.history(), 32, "one notice a minute is stored")
		time.Sleep(24 * time.Hour)
		require.NoError(t, h.report(east, says(4, many(100))))
		require.Len(t, h.history(), 62, "at most 30 at once")

		// Another region has its own budget.
		require.NoError(t, h.report(west, &agentv1.ReportRequest{
			SessionId: "session-w", Epoch: 1, Fence: 1, Sequence: 1, Notices: []*agentv1.Notice{drift("dep_2", "Service shop/x", 1, time.Now())},
		}))
		require.Len(t, read(h, func(tx store.Tx) ([]model.History, error) {
			return tx.ListHistory("ws_2", "app_2", store.Page{Limit: 9})
		}), 1)
	})
}

func TestNotices_OfAFailedReportDoNotUseTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		h := setup(t, func(f *faulty) {
			f.fail = func() error {
				if broken {
					return errors.New("the database is away")
				}
				return nil
			}
		})
		var all []*agentv1.Notice
		for i := range 30 {
			all = append(all, drift("dep_1", fmt.Sprintf("Service shop/s-%d", i), 1, time.Now()))
		}
		require.Error(t, h.report(east, says(1, notices(all...))))
		broken = false
		require.NoError(t, h.report(east, says(1, notices(all...))))
		require.Len(t, h.history(), 30)
	})
}
