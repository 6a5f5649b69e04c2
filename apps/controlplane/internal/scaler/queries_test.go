package scaler

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// byQuery makes the app scale by a query with the target 10.
func (h *harness) byQuery(text string, kind windlassv1.ScalingMetric_Kind) {
	h.set(func() {
		h.apps["app_1"].Scaling.Policy.Metrics = []*windlassv1.ScalingMetric{
			{Type: windlassv1.ScalingMetric_TYPE_PROMETHEUS, Target: "10", Query: text, Kind: kind},
		}
	})
}

// answer makes every query have the figures.
func (h *harness) answer(figures analysis.Figures) {
	h.set(func() { h.figures = func(context.Context, plan.Measure) analysis.Figures { return figures } })
}

func TestQueries_WantReplicasLikeOtherMetrics(t *testing.T) {
	t.Parallel()
	t.Run("a total", func(t *testing.T) {
		t.Parallel()
		play(t, 2, func(t *testing.T, f *harness) {
			f.byQuery("sum(jobs{{{selector}}})", windlassv1.ScalingMetric_KIND_TOTAL)
			f.answer(analysis.Figures{New: new(60.0)})
			f.report(3*time.Minute, 0)
			require.EqualValues(t, 6, f.replicas("app_1"))
			f.answer(analysis.Figures{New: new(0.0)})
			f.report(30*time.Minute, 0)
			require.EqualValues(t, 1, f.replicas("app_1"), "0 is a value")
		})
	})
	t.Run("a level", func(t *testing.T) {
		t.Parallel()
		play(t, 2, func(t *testing.T, f *harness) {
			f.byQuery("avg(jobs{{{selector}}})", windlassv1.ScalingMetric_KIND_LEVEL)
			f.set(func() {
				f.figures = func(context.Context, plan.Measure) analysis.Figures {
					return analysis.Figures{New: new(60.0 / float64(f.replicas("app_1")))}
				}
			})
			f.report(10*time.Minute, 0)
			require.EqualValues(t, 6, f.replicas("app_1"))
		})
	})
}

func TestQueries_MissingValueIsNeverZero(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		figures analysis.Figures
		problem string
	}{
		"no result":           {analysis.Figures{}, "the query has no result"},
		"an error":            {analysis.Figures{Problem: strings.Repeat("é", 1000)}, strings.Repeat("é", 250)},
		"not a number":        {analysis.Figures{New: new(math.NaN())}, "the result is not a finite number"},
		"an infinite number":  {analysis.Figures{New: new(math.Inf(-1))}, "the result is not a finite number"},
		"a negative number":   {analysis.Figures{New: new(-1.0)}, "the result is negative"},
		"a value and a fault": {analysis.Figures{New: new(0.0), Problem: "timeout"}, "timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, 2, func(t *testing.T, f *harness) {
				f.byQuery("sum(jobs)", windlassv1.ScalingMetric_KIND_TOTAL)
				f.answer(analysis.Figures{New: new(60.0)})
				f.report(3*time.Minute, 0)
				require.EqualValues(t, 6, f.replicas("app_1"))
				f.answer(c.figures)
				f.report(time.Hour, 0)
				require.EqualValues(t, 6, f.replicas("app_1"))
				want := f.svc.Live("app_1")["reg_1"].GetWants()[0]
				require.Nil(t, want.Value)
				require.Positive(t, want.GetMissingSince())
				require.Equal(t, c.problem, want.GetProblem())
				require.Contains(t, f.entries(), "ScalingMetricMissing")

				f.answer(analysis.Figures{New: new(0.0)})
				f.report(30*time.Minute, 0)
				require.EqualValues(t, 1, f.replicas("app_1"))
				require.Empty(t, f.svc.Live("app_1")["reg_1"].GetWants()[0].GetProblem())
			})
		})
	}
}

func TestQueries_OneFailureMakesNoMetricMissing(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		f.byQuery("sum(jobs)", windlassv1.ScalingMetric_KIND_TOTAL)
		n := 0
		f.set(func() {
			f.figures = func(context.Context, plan.Measure) analysis.Figures {
				if n++; n%2 == 0 {
					return analysis.Figures{Problem: "timeout"}
				}
				return analysis.Figures{New: new(60.0)}
			}
		})
		f.report(time.Hour, 0)
		require.EqualValues(t, 6, f.replicas("app_1"))
		require.NotContains(t, f.entries(), "ScalingMetricMissing")
	})
}

func TestQueries_AreOfTheAppsOwnSeries(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		f.set(func() {
			region := f.apps["app_1"].Regions["reg_1"]
			region.MadeFor = []string{"dep_1", "dep_0"}
			f.apps["app_1"].Regions["reg_1"] = region
		})
		f.byQuery(`sum(rate(jobs{{{selector}}}[{{window}}])) + {{version}}`, windlassv1.ScalingMetric_KIND_TOTAL)
		f.report(time.Minute, 0)
		f.mu.Lock()
		defer f.mu.Unlock()
		require.NotEmpty(t, f.asked)
		require.LessOrEqual(t, len(f.asked), 2, "after a query without a value, the next one is a minute later")
		m := f.asked[0]
		require.Equal(t, []any{"ws_1", "reg_1"}, []any{m.WorkspaceID, m.RegionID})
		require.Equal(t, []string{"dep_1", "dep_0"}, m.Queries.Within)
		require.Equal(t, `sum(rate(jobs{windlass_deployment=~"dep_1|dep_0",windlass_region="us-east-1"}[60s])) + 0`, m.Queries.New)
	})
}

func TestQueries_SlowWorkspaceDelaysNoOther(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		f.byQuery("sum(jobs)", windlassv1.ScalingMetric_KIND_TOTAL)
		f.set(func() {
			slow := *f.apps["app_1"]
			slow.AppID, slow.WorkspaceID = "app_2", "ws_2"
			slow.Regions = map[string]model.ScaledRegion{"reg_1": slow.Regions["reg_1"]}
			f.apps["app_2"] = &slow
			f.figures = func(ctx context.Context, m plan.Measure) analysis.Figures {
				if m.WorkspaceID == "ws_2" {
					select {
					case <-ctx.Done():
					case <-time.After(10 * time.Minute):
					}
				}
				return analysis.Figures{New: new(60.0)}
			}
		})
		f.reportOf(3*time.Minute, 0, "app_1", "app_2")
		require.EqualValues(t, 6, f.replicas("app_1"))
		require.EqualValues(t, 2, f.replicas("app_2"))
		f.mu.Lock()
		defer f.mu.Unlock()
		n := 0
		for _, m := range f.asked {
			if m.WorkspaceID == "ws_2" {
				n++
			}
		}
		require.Equal(t, 1, n, "each query runs once at a time")
	})
}
