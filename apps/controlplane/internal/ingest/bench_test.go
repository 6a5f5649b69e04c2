package ingest_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/ingest"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
)

// idle is a store that does nothing, so that only the cost of ingest is measured.
type idle struct{ ingest.Tx }

func (s idle) Update(_ context.Context, fn func(ingest.Tx) error) error { return fn(s) }

func (idle) CheckSessions(ids []string) ([]model.Region, error) {
	regions := make([]model.Region, len(ids))
	for i, id := range ids {
		regions[i] = model.Region{ID: id, SessionID: "session-1", SessionEpoch: 1, SessionFence: 1}
	}
	return regions, nil
}

func (idle) NoteReports([]model.Region, int64) error                        { return nil }
func (idle) GetAssignments(map[string][]string) ([]model.Assignment, error) { return nil, nil }
func (idle) GetObserved(map[string][]string) ([]model.Observed, error)      { return nil, nil }
func (idle) PutInstances([]model.Instance) error                            { return nil }
func (idle) PutObserved([]model.Observed) error                             { return nil }

// BenchmarkReport measures a report of one region, and of regions that report at the same time.
func BenchmarkReport(b *testing.B) {
	for _, callers := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("regions=%d", callers), func(b *testing.B) {
			svc, err := ingest.New(ingest.Config{
				Store: idle{},
				Caller: func(ctx context.Context) (string, int64, bool) {
					id, ok := ctx.Value(callerKey{}).(string)
					return id, 10, ok
				},
				Edges: rollup.Edges, RouteEdges: rollup.RouteEdges,
				Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
			})
			require.NoError(b, err)
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 1)
			go func() { done <- svc.Run(ctx) }()
			var next atomic.Int64
			req := says(1, counts("dep_1", 1), has("dep_1", ready, "ins_1", "ins_2"))
			b.ReportAllocs()
			b.SetParallelism(max(callers/2, 1))
			report := func(ctx context.Context) {
				if _, err := svc.Report(ctx, req); err != nil {
					b.Error(err)
				}
			}
			region := func() context.Context {
				return context.WithValue(b.Context(), callerKey{}, fmt.Sprintf("reg_%04d", next.Add(1)))
			}
			if callers == 1 {
				ctx := region()
				for b.Loop() {
					report(ctx)
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					ctx := region()
					for pb.Next() {
						report(ctx)
					}
				})
			}
			cancel()
			require.NoError(b, <-done)
		})
	}
}
