package ingest_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// loaded returns a load of the app, which change can modify.
func loaded(app string, change ...func(*agentv1.LoadReport, *agentv1.DeploymentLoad)) *agentv1.LoadReport {
	d := &agentv1.DeploymentLoad{DeploymentId: "dep_1", Ready: 2, InFlight: new(8.0), Rate: new(1.5), Levels: map[string]float64{"cpu": 40}, Latency: []uint64{0, 3}}
	r := &agentv1.LoadReport{AppId: app, At: time.Now().UnixMilli(), Queued: new(1.0), Deployments: []*agentv1.DeploymentLoad{d}}
	for _, c := range change {
		c(r, d)
	}
	return r
}

// counter returns the sum of a counter's series.
func (h *harness) counter(name string) (sum float64) {
	families, err := h.registry.Gather()
	require.NoError(h.t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.Metric {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func TestLoads(t *testing.T) {
	withLoads := func(sequence int64, loads ...*agentv1.LoadReport) *agentv1.ReportRequest {
		r := says(sequence)
		r.Loads = loads
		return r
	}
	t.Run("are passed on and stored nowhere", func(t *testing.T) {
		writes := 0
		h := setup(t, func(f *faulty) { f.fail = func() error { writes++; return nil } })
		require.NoError(t, h.report(east, says(1)))
		before := writes
		require.NoError(t, h.report(east, withLoads(2, loaded("app_1"))))
		require.Equal(t, before, writes, "loads need no transaction")
		require.Len(t, h.loads[east], 1)
		require.InDelta(t, 8, *h.loads[east][0].Deployments[0].InFlight, 0)
		require.InDelta(t, 1, h.counter("windlass_load_reports_total"), 0)
		require.Zero(t, h.counter("windlass_load_reports_dropped_total"))
	})
	t.Run("of an app that another region runs are dropped", func(t *testing.T) {
		h := setup(t)
		other := withLoads(1, loaded("app_1"))
		other.SessionId, other.Fence = "session-2", h.session(west, "session-2")
		require.NoError(t, h.report(west, other))
		require.NoError(t, h.report(east, withLoads(1, loaded("app_2"), loaded("app_1"))))
		require.Len(t, h.loads[east], 1)
		require.Empty(t, h.loads[west])
		require.InDelta(t, 2, h.counter("windlass_load_reports_dropped_total"), 0)
	})
	t.Run("of a replaced session are refused", func(t *testing.T) {
		h := setup(t)
		h.session(east, "session-2")
		require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, rpc.ReasonOf(h.report(east, withLoads(1, loaded("app_1")))))
		require.Empty(t, h.loads[east])
	})
	t.Run("with an invalid figure are dropped alone", func(t *testing.T) {
		for name, change := range map[string]func(*agentv1.LoadReport, *agentv1.DeploymentLoad){
			"not a number":         func(r *agentv1.LoadReport, _ *agentv1.DeploymentLoad) { r.Queued = new(math.NaN()) },
			"infinite":             func(_ *agentv1.LoadReport, d *agentv1.DeploymentLoad) { d.InFlight = new(math.Inf(1)) },
			"negative":             func(_ *agentv1.LoadReport, d *agentv1.DeploymentLoad) { d.Rate = new(-1.0) },
			"huge":                 func(_ *agentv1.LoadReport, d *agentv1.DeploymentLoad) { d.Rate = new(1e30) },
			"level":                func(_ *agentv1.LoadReport, d *agentv1.DeploymentLoad) { d.Levels["kvCache"] = math.NaN() },
			"negative replicas":    func(_ *agentv1.LoadReport, d *agentv1.DeploymentLoad) { d.Ready = -1 },
			"huge replicas":        func(_ *agentv1.LoadReport, d *agentv1.DeploymentLoad) { d.Starting = math.MaxInt32 },
			"times that overflow":  func(_ *agentv1.LoadReport, d *agentv1.DeploymentLoad) { d.Latency = []uint64{math.MaxUint64} },
			"a deployment twice":   func(r *agentv1.LoadReport, d *agentv1.DeploymentLoad) { r.Deployments = append(r.Deployments, d) },
			"without a deployment": func(_ *agentv1.LoadReport, d *agentv1.DeploymentLoad) { d.DeploymentId = "" },
			"without a time":       func(r *agentv1.LoadReport, _ *agentv1.DeploymentLoad) { r.At = 0 },
		} {
			t.Run(name, func(t *testing.T) {
				h := setup(t)
				require.NoError(t, h.report(east, withLoads(1, loaded("app_1", change), loaded("app_1"))))
				require.Len(t, h.loads[east], 1)
				require.InDelta(t, 1, h.counter("windlass_load_reports_dropped_total"), 0)
			})
		}
	})
	t.Run("lose unknown levels", func(t *testing.T) {
		h := setup(t)
		require.NoError(t, h.report(east, withLoads(1, loaded("app_1", func(r *agentv1.LoadReport, d *agentv1.DeploymentLoad) {
			d.Levels["later"] = math.NaN()
			r.Problems = map[string]string{"memory": "unknown", "later": "unknown"}
		}))))
		require.Equal(t, map[string]float64{"cpu": 40}, h.loads[east][0].Deployments[0].Levels)
		require.Equal(t, map[string]string{"memory": "unknown"}, h.loads[east][0].Problems)
	})
}
