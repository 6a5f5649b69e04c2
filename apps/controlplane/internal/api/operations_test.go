package api_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestOperations_AreCountedByOutcome(t *testing.T) {
	registry := prometheus.NewRegistry()
	w := setup(t, func(cfg *api.Config) { cfg.Registerer = registry })
	w.deploy("chat")
	w.setSecret("tok", "one")
	_, err := w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "nothing", Replicas: 2})
	require.Error(t, err)

	families, err := registry.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "deployment_operations_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			counted[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
		}
	}
	require.Equal(t, map[string]float64{"deploy ok": 1, "secret ok": 1, "scale not_found": 1}, counted)
}
