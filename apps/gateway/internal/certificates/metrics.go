package certificates

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// registerMetrics returns the counter of failed orders. soonest returns the Unix time at which the first
// certificate expires.
func registerMetrics(registerer prometheus.Registerer, soonest func() float64) (failures *prometheus.CounterVec, err error) {
	failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_gateway_certificate_failures_total", Help: "Orders of certificates that failed, by the problem type of the ACME server, or \"other\". \"renewal\" counts each certificate that is not renewed, once an hour.",
	}, []string{"problem"})
	expires := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "windlass_gateway_certificate_expires_seconds", Help: "Unix time at which the first of the ACME certificates in use expires. 0: none is in use.",
	}, soonest)
	for _, c := range []prometheus.Collector{failures, expires} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("certificates: register metrics: %w", err)
		}
	}
	return failures, nil
}
