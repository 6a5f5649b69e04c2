package traffic_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout/traffic"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// fakeAgent answers as an agent does, with the traffic that its gateways saw of each deployment.
type fakeAgent struct {
	seen     map[string]*agentv1.Traffic
	gateways int32
	err      error
	garbage  bool
}

func source(regions map[string]fakeAgent, asked *[]string) traffic.Source {
	var mu sync.Mutex
	return traffic.Source{
		Ask: func(ctx context.Context, id string, req *agentv1.Request) ([]byte, error) {
			mu.Lock()
			*asked = append(*asked, id)
			mu.Unlock()
			r := regions[id]
			if r.err != nil {
				return nil, r.err
			}
			if _, ok := ctx.Deadline(); !ok || r.garbage {
				return []byte("what"), nil
			}
			res := &agentv1.TrafficResponse{Gateways: r.gateways}
			for _, q := range req.GetTraffic().Queries {
				one := r.seen[q.DeploymentId]
				if one == nil || q.Window.AsDuration() != time.Minute {
					one = &agentv1.Traffic{}
				}
				res.Traffic = append(res.Traffic, one)
			}
			return proto.Marshal(res)
		},
	}
}

func TestTraffic_AsksARegionOnceForAllThatIsDue(t *testing.T) {
	t.Parallel()
	const errorRate, latency = windlassv1.AnalysisCheck_TEMPLATE_ERROR_RATE, windlassv1.AnalysisCheck_TEMPLATE_LATENCY_P95
	var asked []string
	s := source(map[string]fakeAgent{
		"reg_1": {gateways: 2, seen: map[string]*agentv1.Traffic{
			"dep_new": {Requests: 20, Errors: 5, LatencyP95: new(0.5)}, "dep_old": {Requests: 80, LatencyP95: new(0.25)},
		}},
		"reg_none": {}, "reg_away": {err: model.ErrAgentUnreachable}, "reg_old": {err: errors.New("update the agent")}, "reg_odd": {gateways: 1, garbage: true},
	}, &asked)
	measure := func(region, check string, template windlassv1.AnalysisCheck_Template, old string) plan.Measure {
		return plan.Measure{RegionID: region, Check: check, Since: 7, Traffic: &analysis.Traffic{Template: template, New: "dep_new", Old: old, Window: time.Minute}}
	}
	due := []plan.Measure{
		measure("reg_1", "errors", errorRate, ""), measure("reg_none", "errors", errorRate, ""), measure("reg_1", "latency", latency, "dep_old"),
		measure("reg_away", "errors", errorRate, ""), measure("reg_old", "errors", errorRate, ""), measure("reg_odd", "errors", errorRate, ""),
		{RegionID: "reg_1", Check: "mine", Queries: analysis.Queries{New: "up"}},
		measure("reg_1", "versus", errorRate, "dep_old"),
	}
	got := s.Measure(t.Context(), due)
	require.Len(t, got, len(due))
	require.ElementsMatch(t, []string{"reg_1", "reg_none", "reg_away", "reg_old", "reg_odd"}, asked)
	for i, m := range got {
		require.Equal(t, due[i].Check, m.Check)
		require.Equal(t, due[i].Since, m.Since)
		require.Positive(t, m.At)
	}
	require.InDelta(t, 0.25, *got[0].Figures.New, 1e-9)
	require.InDelta(t, 20, *got[0].Figures.NewSamples, 0)
	require.Nil(t, got[0].Figures.Old)
	require.InDelta(t, 0.5, *got[2].Figures.New, 1e-9)
	require.InDelta(t, 0.25, *got[2].Figures.Old, 1e-9)
	require.InDelta(t, 80, *got[2].Figures.OldSamples, 0)
	require.Zero(t, *got[7].Figures.Old)
	require.Contains(t, got[1].Figures.Problem, "no gateway")
	require.Contains(t, got[3].Figures.Problem, "cannot be reached")
	require.Contains(t, got[4].Figures.Problem, "update the agent")
	require.Contains(t, got[5].Figures.Problem, "update it")
	require.Contains(t, got[6].Figures.Problem, "--prometheus-url")
}
