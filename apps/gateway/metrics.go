package gateway

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/pkg/conns"
)

func registerConnections(registerer prometheus.Registerer, table *conns.Table) error {
	figure := func(of int) func() float64 {
		return func() float64 {
			open, refused, shed := table.Figures()
			return float64([...]int64{open, refused, shed}[of])
		}
	}
	return registerAll(
		registerer,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "windlass_gateway_connections", Help: "Connections of clients.",
		}, figure(0)),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "windlass_gateway_connections_refused_total", Help: "Connections of clients that were closed at once, because the limit was reached and all connections had requests, or because the address is held back from HTTP/3.",
		}, figure(1)),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "windlass_gateway_connections_shed_total", Help: "Connections of clients without a request that were closed to make room for other connections.",
		}, figure(2)),
		handshakesCollector{
			table:   table,
			waiting: prometheus.NewDesc("windlass_gateway_handshakes_waiting", "TLS handshakes of clients that wait for processor time, because other handshakes use it, by listener: https or http3.", []string{"listener"}, nil),
			refused: prometheus.NewDesc("windlass_gateway_handshakes_refused_total", "TLS handshakes of clients that were refused, by listener and by reason. queue: too many waited. address: too many of the address waited. late: the wait took too long.", []string{"listener", "reason"}, nil),
		},
	)
}

// handshakesCollector reads the figures at each scrape.
type handshakesCollector struct {
	table            *conns.Table
	waiting, refused *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c handshakesCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.waiting
	ch <- c.refused
}

// Collect implements prometheus.Collector.
func (c handshakesCollector) Collect(ch chan<- prometheus.Metric) {
	for _, of := range c.table.Handshakes() {
		ch <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(of.Waiting), of.Listener)
		for reason, n := range of.Refused {
			ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(n), of.Listener, reason)
		}
	}
}

func registerEjections(registerer prometheus.Registerer) (prometheus.Counter, error) {
	ejections := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "windlass_gateway_ejections_total", Help: "Ejections: instances that got no requests for a time, because requests to them failed.",
	})
	return ejections, registerAll(registerer, ejections)
}

func registerRegionsReached(registerer prometheus.Registerer, reached func() int) error {
	return registerAll(registerer, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "windlass_gateway_regions_reached", Help: "Other regions to which requests may be handed over and whose gateways can be reached.",
	}, func() float64 { return float64(reached()) }))
}

func registerAll(registerer prometheus.Registerer, all ...prometheus.Collector) error {
	for _, c := range all {
		if err := registerer.Register(c); err != nil {
			return fmt.Errorf("gateway: register metrics: %w", err)
		}
	}
	return nil
}
