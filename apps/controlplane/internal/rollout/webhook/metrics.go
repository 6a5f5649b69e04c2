package webhook

import (
	"github.com/prometheus/client_golang/prometheus"
)

func newDuration() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "windlass_analysis_webhook_duration_seconds",
		Help:    "Time that calls of rollouts' web-hooks took, by verdict, or error where there was none.",
		Buckets: prometheus.ExponentialBuckets(0.005, 3, 8),
	}, []string{"outcome"})
}
