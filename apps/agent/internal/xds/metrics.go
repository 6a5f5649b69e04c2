package xds

import (
	"github.com/prometheus/client_golang/prometheus"
)

func registerStreams(registerer prometheus.Registerer, count func(kind string) int) {
	for _, kind := range []string{forEnvoy, forGRPC} {
		registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "windlass_agent_xds_streams", Help: "Open streams of xDS clients, by kind of client.", ConstLabels: prometheus.Labels{"client": kind},
		}, func() float64 { return float64(count(kind)) }))
	}
}
