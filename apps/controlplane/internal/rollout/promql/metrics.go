package promql

import (
	"github.com/prometheus/client_golang/prometheus"
)

func registerDuration(r prometheus.Registerer) (*prometheus.HistogramVec, error) {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "windlass_analysis_query_duration_seconds",
		Help:    "Duration of queries for the checks of rollouts and the metrics of scaling, by outcome: ok or error.",
		Buckets: prometheus.ExponentialBuckets(0.005, 3, 8),
	}, []string{"outcome"})
	return h, r.Register(h)
}
