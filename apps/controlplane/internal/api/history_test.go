package api_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestHistory_PagesStayBetweenTheTimes(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		id := w.deploy("chat").GetAppId()
		begin := time.Now().Add(-time.Hour).Truncate(time.Second)
		w.update(func(tx store.Tx) error {
			var rows []model.History
			for i := range 20 {
				at := begin.Add(time.Duration(i) * time.Second)
				rows = append(rows, model.History{
					ID: ident.From("hst", at, uint64(i), 1), WorkspaceID: w.workspace, AppID: id, At: at.UnixMilli(), What: fmt.Sprint(i), Who: "windlass",
				})
			}
			return tx.InsertHistory(rows)
		})
		list := func(since, until time.Time, size int32) (what []string) {
			page := &windlassv1.PageRequest{Size: size}
			for {
				res, err := w.history(w.viewer).ListHistory(t.Context(), &windlassv1.ListHistoryRequest{
					App: "chat", Page: page, Since: since.UnixMilli(), Until: until.UnixMilli(),
				})
				require.NoError(t, err)
				for _, h := range res.GetEntries() {
					what = append(what, h.GetWhat())
				}
				if page.Token = res.GetPage().GetNext(); page.Token == "" {
					return what
				}
			}
		}
		at := func(second int) time.Time { return begin.Add(time.Duration(second) * time.Second) }
		for _, size := range []int32{1, 2, 3, 500} {
			require.Equal(t, []string{"7", "6", "5", "4", "3"}, list(at(3), at(7), size), "pages of %d", size)
		}
		require.Equal(t, []string{"7"}, list(at(7), at(7), 1))
		require.Empty(t, list(at(7).Add(time.Millisecond), at(8).Add(-time.Millisecond), 2))
		require.Equal(t, []string{"1", "0"}, list(time.UnixMilli(0), at(1), 2))
		require.Subset(t, list(at(18), time.UnixMilli(0), 2), []string{"19", "18", "DeploymentCreated"})

		_, err := w.history(w.viewer).ListHistory(t.Context(), &windlassv1.ListHistoryRequest{App: "chat", Since: 2, Until: 1})
		refused(t, err, connect.CodeInvalidArgument, invalid, "since")
		_, err = w.history(w.viewer).ListHistory(t.Context(), &windlassv1.ListHistoryRequest{App: "chat", Until: math.MaxInt64})
		refused(t, err, connect.CodeInvalidArgument, invalid, "until")
	})
}
