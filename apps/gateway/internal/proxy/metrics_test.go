package proxy

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/table"
	"github.com/windlass-run/windlass/apps/gateway/internal/traffic"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

func TestFiguresOfADeploymentOutliveItByOneSweep(t *testing.T) {
	routes := table.New(upstream.Config{Now: time.Now, Random: rand.Uint64, Ejected: func(upstream.Ejection) {}, Drained: func(string) {}})
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry, routes, &traffic.Traffic{})
	require.NoError(t, err)
	spec := upstream.Spec{
		AppID: "app_1", AppName: "echo", Hosts: []string{"echo.local"}, Policy: upstream.DefaultPolicy(),
		Targets: []upstream.TargetSpec{{DeploymentID: "dep_1", Version: 1, Weight: 1}},
	}
	require.NoError(t, routes.Put(spec))
	m.ended(&exchange{route: routes.Lookup("echo.local"), spec: &spec, deployment: "dep_1", version: 1, status: 200}, time.Second)
	count := func() int {
		families, err := registry.Gather()
		require.NoError(t, err)
		n := 0
		for _, f := range families {
			if f.GetName() == "windlass_gateway_requests_total" {
				n = len(f.Metric)
			}
		}
		return n
	}
	m.sweep(routes)
	m.sweep(routes)
	require.Equal(t, 1, count(), "it is routed")
	routes.Remove("app_1")
	m.sweep(routes)
	require.Equal(t, 1, count(), "who scrapes may not have seen the last of it")
	m.sweep(routes)
	require.Zero(t, count())
}
