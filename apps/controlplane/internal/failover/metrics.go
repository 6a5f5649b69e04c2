package failover

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics has the metrics of all sets of a program. It is a prometheus.Collector.
type Metrics struct {
	mu       sync.Mutex
	sets     []*Set
	up       *prometheus.GaugeVec
	inUse    *prometheus.GaugeVec
	switches *prometheus.CounterVec
}

// NewMetrics returns metrics without sets.
func NewMetrics() *Metrics {
	return &Metrics{
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "windlass_failover_address_up",
			Help: "1 if the last checks of the address succeeded, 0 if not. Only services with several addresses are checked.",
		}, []string{"service", "address"}),
		inUse: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "windlass_failover_address_in_use",
			Help: "1 for the address of the service that calls go to, 0 for the others.",
		}, []string{"service", "address"}),
		switches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_failover_switches_total",
			Help: "Switches to another address of the service, by reason: down, or preferred if an earlier address of the list is up again.",
		}, []string{"service", "reason"}),
	}
}

func (m *Metrics) add(s *Set) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sets = append(m.sets, s)
	if len(s.health) > 1 {
		// The series exist from the start, so that rates over them see the first switch.
		m.switches.WithLabelValues(s.cfg.Service, reasonDown)
		m.switches.WithLabelValues(s.cfg.Service, reasonPreferred)
	}
}

func (m *Metrics) remove(s *Set) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sets = slices.DeleteFunc(m.sets, func(other *Set) bool { return other == s })
}

func (m *Metrics) countSwitch(service, reason string) {
	m.switches.WithLabelValues(service, reason).Inc()
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	m.up.Describe(to)
	m.inUse.Describe(to)
	m.switches.Describe(to)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.up.Reset()
	m.inUse.Reset()
	for _, s := range m.sets {
		all := s.ListStatus()
		if len(all) == 1 {
			continue
		}
		for _, status := range all {
			m.up.WithLabelValues(s.cfg.Service, status.Address).Set(oneIf(status.Up))
			m.inUse.WithLabelValues(s.cfg.Service, status.Address).Set(oneIf(status.InUse))
		}
	}
	m.up.Collect(to)
	m.inUse.Collect(to)
	m.switches.Collect(to)
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
