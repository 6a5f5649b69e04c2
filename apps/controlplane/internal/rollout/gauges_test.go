package rollout

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// counted is a store with these counts.
type counted struct {
	active model.ActiveRolloutCount
	due    []model.Wake
}

func (c *counted) View(_ context.Context, fn func(GaugesTx) error) error { return fn(c) }

func (c *counted) CountTopology() ([]model.TopologyCount, error) { return nil, nil }

func (c *counted) CountRegions() (map[windlassv1.RegionStatus]int, error) {
	return map[windlassv1.RegionStatus]int{windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE: 2}, nil
}

func (c *counted) CountActiveRollouts() (model.ActiveRolloutCount, error) { return c.active, nil }

func (c *counted) DueWakes(int64, int64, int) ([]model.Wake, error) { return c.due, nil }

func TestGauges(t *testing.T) {
	now := time.Now()
	s := &counted{
		active: model.ActiveRolloutCount{Rollouts: 3, OldestAt: now.Add(-2 * time.Hour).UnixMilli()},
		due:    []model.Wake{{AppID: "app_1", Due: now.Add(-10 * time.Minute).UnixMilli()}},
	}
	registry := prometheus.NewRegistry()
	g, err := NewGauges(s, slog.New(slog.DiscardHandler), registry)
	require.NoError(t, err)

	t.Run("rollouts and steps that wait have their age", func(t *testing.T) {
		require.NoError(t, g.Count(t.Context()))
		require.EqualValues(t, 3, testutil.ToFloat64(g.active))
		require.InDelta(t, 7200, testutil.ToFloat64(g.oldest), 60)
		require.InDelta(t, 600, testutil.ToFloat64(g.overdue), 60)
		require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP windlass_regions Regions by status: pending without an agent so far, connected, unreachable.
# TYPE windlass_regions gauge
windlass_regions{status="connected"} 0
windlass_regions{status="pending"} 0
windlass_regions{status="unreachable"} 2
`), "windlass_regions"))
	})

	t.Run("the gauges go back to 0 when all is done", func(t *testing.T) {
		s.active, s.due = model.ActiveRolloutCount{}, nil
		require.NoError(t, g.Count(t.Context()))
		require.Zero(t, testutil.ToFloat64(g.active))
		require.Zero(t, testutil.ToFloat64(g.oldest))
		require.Zero(t, testutil.ToFloat64(g.overdue))
	})

	t.Run("a database clock that is ahead makes no negative age", func(t *testing.T) {
		s.due = []model.Wake{{AppID: "app_1", Due: now.Add(time.Hour).UnixMilli()}}
		require.NoError(t, g.Count(t.Context()))
		require.Zero(t, testutil.ToFloat64(g.overdue))
	})
}
