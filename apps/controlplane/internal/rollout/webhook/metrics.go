package webhook

import (
	"github.com/prometheus/client_golang/prometheus"
)

func registerDuration(r prometheus.Registerer) (*prometheus.HistogramVec, error) {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "windlass_analysis_webhook_duration_seconds",
		Help:    "Time that calls of rollouts' webhooks took, by verdict, or error for a call without a verdict.",
		Buckets: prometheus.ExponentialBuckets(0.005, 3, 8),
	}, []string{"outcome"})
	return h, r.Register(h)
}
