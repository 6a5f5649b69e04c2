package load

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	apps     prometheus.Gauge
	failures *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		apps: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "windlass_agent_scaled_apps", Help: "Apps that are scaled in the region and whose load is measured.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_agent_load_failures_total", Help: "Parts of the load that could not be measured: scrape (of one instance's metrics) or usage (CPU and memory of all instances).",
		}, []string{"part"}),
	}
	registerer.MustRegister(m.apps, m.failures)
	return m
}
