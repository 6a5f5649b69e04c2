package session

import (
	"github.com/prometheus/client_golang/prometheus"
)

func (s *Session) registerMetrics() {
	s.gauge = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "windlass_agent_connected", Help: "1 while the agent has a stream from the control plane.",
	})
	s.repairs = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "windlass_agent_digest_mismatches_total", Help: "Times that the inbox differed from the control plane's digest.",
	})
	s.cfg.Registerer.MustRegister(s.gauge, s.repairs)
}
