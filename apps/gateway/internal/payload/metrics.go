package payload

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

func (l *Log) registerMetrics(registerer prometheus.Registerer) error {
	l.written = prometheus.NewCounter(prometheus.CounterOpts{Name: "windlass_gateway_payloads_total", Help: "Requests whose payloads were logged."})
	l.dropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_gateway_payloads_dropped_total", Help: "Requests whose payloads should have been logged but were not, because the log was behind or could not be written.",
	}, []string{"why"})
	return errors.Join(registerer.Register(l.written), registerer.Register(l.dropped))
}
