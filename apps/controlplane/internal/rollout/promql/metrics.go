package promql

import (
	"github.com/prometheus/client_golang/prometheus"
)

func newDuration() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "windlass_analysis_query_duration_seconds",
		Help:    "Duration of queries for the checks of rollouts and the metrics of scaling, by outcome: ok or error.",
		Buckets: prometheus.ExponentialBuckets(0.005, 3, 8),
	}, []string{"outcome"})
}
