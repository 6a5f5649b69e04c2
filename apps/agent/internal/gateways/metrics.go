package gateways

import (
	"github.com/prometheus/client_golang/prometheus"
)

func registerConnected(registerer prometheus.Registerer, connected func() int) {
	registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "windlass_agent_gateways_connected", Help: "Authenticated gateways with an open stream.",
	}, func() float64 { return float64(connected()) }))
}
