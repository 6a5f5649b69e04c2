package alone

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	raised prometheus.Gauge
	raises *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		raised: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "windlass_agent_raised_replicas", Help: "Replicas that run in addition to the assigned ones, because the agent raised apps while it was cut off from the control plane.",
		}),
		raises: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_agent_raises_total", Help: "Raises of an app while the agent was cut off from the control plane, by outcome: raised, or error (the raise could not be stored).",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{"raised", "error"} {
		m.raises.WithLabelValues(outcome)
	}
	registerer.MustRegister(m.raised, m.raises)
	return m
}
