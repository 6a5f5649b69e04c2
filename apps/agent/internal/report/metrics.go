package report

import (
	"github.com/prometheus/client_golang/prometheus"
)

func registerLatency(registerer prometheus.Registerer) prometheus.Histogram {
	latency := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "windlass_agent_report_duration_seconds", Help: "Time until a report was answered, retries included.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
	})
	registerer.MustRegister(latency)
	return latency
}
