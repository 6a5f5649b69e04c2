package mysql_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
)

// BenchmarkFeed measures a decision of a workflow: the app is locked, its topology
// gets a new generation in every region, and the changes are in the feed.
func BenchmarkFeed(b *testing.B) {
	for _, n := range []int{1, 3, 10} {
		b.Run(fmt.Sprintf("regions=%d", n), func(b *testing.B) {
			s := open(b, mysql.Config{MaxTries: 100})
			ids := regions(b, s, n)
			const apps = 64
			update(b, s, func(tx store.Tx) error {
				for i := range apps {
					if err := tx.InsertApp(model.App{ID: fmt.Sprintf("app_%02d", i), WorkspaceID: "ws_1", EnvironmentID: "env_1", Name: fmt.Sprintf("a%d", i), ResourceVersion: 1}); err != nil {
						return err
					}
				}
				return nil
			})
			var next atomic.Int64
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					i := next.Add(1)
					app := fmt.Sprintf("app_%02d", i%apps)
					err := s.Update(context.Background(), func(tx store.Tx) error {
						a, err := tx.LockApp("", app)
						if err != nil {
							return err
						}
						if err := tx.StepApps([]model.AppStep{{App: a}}); err != nil {
							return err
						}
						rows := make([]model.Topology, len(ids))
						for k, id := range ids {
							rows[k] = model.Topology{WorkspaceID: "ws_1", AppID: app, DeploymentID: "dep_" + app, RegionID: id, Replicas: 2, Generation: a.Step + 1, Status: 1}
							tx.Change(id, model.KindDeployment, "dep_"+app, a.Step+1)
						}
						return tx.PutTopology(rows)
					})
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tx/s")
			b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "changes/s")
		})
	}
}

// BenchmarkGuardedUpserts measures a batch of a thousand reports about existing
// instances. Each report is newer than the stored row.
func BenchmarkGuardedUpserts(b *testing.B) {
	const batch, writers = 1000, 4
	s := open(b, mysql.Config{MaxTries: 100})
	rows := make([][]model.Instance, writers)
	for w := range rows {
		rows[w] = make([]model.Instance, batch)
		for i := range rows[w] {
			rows[w][i] = model.Instance{
				ID: fmt.Sprintf("ins_%d_%04d", w, i), WorkspaceID: "ws_1", AppID: "app_1", DeploymentID: "dep_1",
				RegionID: fmt.Sprintf("reg_%d", w), Role: "main", Status: 4, Address: "10.0.0.1:8000", RuntimeName: "pod-1",
			}
		}
		require.NoError(b, s.Update(b.Context(), func(tx store.Tx) error { return tx.PutInstances(rows[w]) }))
	}
	var guard atomic.Int64
	work := make(chan []model.Instance)
	done := make(chan error, writers)
	for range writers {
		go func() {
			var failed error
			for r := range work {
				if err := s.Update(context.Background(), func(tx store.Tx) error { return tx.PutInstances(r) }); err != nil {
					failed = err
				}
			}
			done <- failed
		}()
	}
	b.ResetTimer()
	for i := range b.N {
		next := append([]model.Instance(nil), rows[i%writers]...)
		g := model.Guard(guard.Add(1))
		for k := range next {
			next[k].Guard, next[k].UpdatedAt = g, int64(g)
		}
		work <- next
	}
	close(work)
	for range writers {
		require.NoError(b, <-done)
	}
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "rows/s")
}
