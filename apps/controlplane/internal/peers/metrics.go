package peers

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	nudges   *prometheus.CounterVec
	received prometheus.Counter
	asks     *prometheus.CounterVec
	loads    *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, count func() float64) *metrics {
	m := &metrics{
		nudges: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_peer_nudges_total", Help: "Calls that notified a peer of commits, by outcome (ok, error).",
		}, []string{"outcome"}),
		received: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_peer_nudges_received_total", Help: "Calls in which peers notified this process of commits.",
		}),
		asks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_peer_asks_total", Help: "Requests to agents that went through a peer, by outcome (ok, error).",
		}, []string{"outcome"}),
		loads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_peer_loads_total", Help: "Loads of scaled apps that were sent to a peer, by outcome: ok (it took them), elsewhere (it does not have the stream of their region) or error.",
		}, []string{"outcome"}),
	}
	reg.MustRegister(m.nudges, m.received, m.asks, m.loads, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "windlass_peers", Help: "Other processes of the control plane that this one knows.",
	}, count))
	return m
}

func outcomeLabel(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

func (m *metrics) countNudge(err error) { m.nudges.WithLabelValues(outcomeLabel(err)).Inc() }
func (m *metrics) countAsk(err error)   { m.asks.WithLabelValues(outcomeLabel(err)).Inc() }
