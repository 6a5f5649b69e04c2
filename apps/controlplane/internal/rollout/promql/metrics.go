package promql

import (
	"github.com/prometheus/client_golang/prometheus"
)

func newDuration() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "windlass_analysis_query_duration_seconds",
		Help:    "Time that queries of rollouts' checks took, by whether they were answered.",
		Buckets: prometheus.ExponentialBuckets(0.005, 3, 8),
	}, []string{"outcome"})
}
