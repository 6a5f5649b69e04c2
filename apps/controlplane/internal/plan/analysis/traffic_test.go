package analysis_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestAskGateways_AsksForWhatGatewaysMeasure(t *testing.T) {
	t.Parallel()
	fresh, old := analysis.Subject{Deployment: "dep_2", Window: 7}, &analysis.Subject{Deployment: "dep_1"}
	for template := range windlassv1.AnalysisCheck_Template_name {
		c := &windlassv1.AnalysisCheck{Template: windlassv1.AnalysisCheck_Template(template), Max: new(1.0)}
		asked := analysis.AskGateways(c, fresh, old)
		if !analysis.SeenByGateways(c.Template) {
			require.Nil(t, asked, c.Template)
			continue
		}
		require.Equal(t, &analysis.Traffic{Template: c.Template, New: "dep_2", Window: 7}, asked)
		c.VersusOld = &windlassv1.VersusOld{MaxRatio: new(2.0)}
		require.Equal(t, "dep_1", analysis.AskGateways(c, fresh, old).Old)
		require.Empty(t, analysis.AskGateways(c, fresh, nil).Old)

		figure, samples := asked.Figure(analysis.Seen{})
		require.Nil(t, figure, "without requests there is no figure: %s", c.Template)
		require.Zero(t, *samples)
		seen := analysis.Seen{Requests: 10, Errors: 4, Streams: 5, LatencyP95: new(0.4), FirstTokenP95: new(0.4)}
		figure, samples = asked.Figure(seen)
		require.InDelta(t, 0.4, *figure, 1e-9)
		require.Contains(t, []float64{5, 10}, *samples)
	}
}
