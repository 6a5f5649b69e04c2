package certificates

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// registerMetrics returns the counter of failed orders. soonest is when the first certificate ends.
func registerMetrics(registerer prometheus.Registerer, soonest func() float64) (failures *prometheus.CounterVec, err error) {
	failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_gateway_certificate_failures_total", Help: "Orders of certificates that failed, by what the ACME server said, or \"other\"; \"renewal\" once an hour for each that is not renewed.",
	}, []string{"problem"})
	expires := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "windlass_gateway_certificate_expires_seconds", Help: "Unix time at which the first of the certificates by ACME ends that are in use; 0: there are none.",
	}, soonest)
	for _, c := range []prometheus.Collector{failures, expires} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("certificates: register metrics: %w", err)
		}
	}
	return failures, nil
}
