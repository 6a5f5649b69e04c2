package conns

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// tally has the counts of one listener: its connections, and its TLS handshakes that wait or were refused.
type tally struct {
	open, refused, shed, heldBack, waiting atomic.Int64

	handshakes [len(handshakeRefusals)]atomic.Int64
}

// tallyOf returns the tally of the listener with this name.
func (t *Table) tallyOf(listener string) *tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tallies[listener] == nil {
		t.tallies[listener] = &tally{}
	}
	return t.tallies[listener]
}

// collector exports the tallies of tables, by listener.
type collector struct {
	tables                        []*Table
	open, refused, shed, heldBack *prometheus.Desc
	waiting, handshakes           *prometheus.Desc
}

// NewCollector returns the metrics of the tables' listeners. Listeners of the same name share their metrics.
func NewCollector(tables ...*Table) prometheus.Collector {
	by := []string{"listener"}
	return &collector{
		tables:     tables,
		open:       prometheus.NewDesc("windlass_connections", "Connections to a listener.", by, nil),
		refused:    prometheus.NewDesc("windlass_connections_refused_total", "Connections to a listener that were closed at once, because the limit was reached and all connections had requests.", by, nil),
		shed:       prometheus.NewDesc("windlass_connections_shed_total", "Connections to a listener that had no request and were closed to make room for other connections.", by, nil),
		heldBack:   prometheus.NewDesc("windlass_streams_held_back_total", "Streams of a listener that had to wait, because their caller and connection opened too many streams that were refused.", by, nil),
		waiting:    prometheus.NewDesc("windlass_handshakes_waiting", "TLS handshakes of a listener that wait for processor time, because other handshakes use it.", by, nil),
		handshakes: prometheus.NewDesc("windlass_handshakes_refused_total", "TLS handshakes of a listener that were refused, by reason. queue: too many waited. address: too many of the address waited. late: the wait took too long.", []string{"listener", "reason"}, nil),
	}
}

// HandshakeFigures has the numbers of TLS handshakes of a listener.
type HandshakeFigures struct {
	Listener string
	Waiting  int64
	// Refused has the number of refused handshakes by reason.
	Refused map[string]int64
}

// Handshakes returns the figures of all listeners that have names.
func (t *Table) Handshakes() []HandshakeFigures {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []HandshakeFigures
	for _, name := range slices.Sorted(maps.Keys(t.tallies)) {
		of := t.tallies[name]
		refused := map[string]int64{}
		for i, r := range handshakeRefusals {
			refused[r.name] = of.handshakes[i].Load()
		}
		out = append(out, HandshakeFigures{Listener: name, Waiting: of.waiting.Load(), Refused: refused})
	}
	return out
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.open
	ch <- c.refused
	ch <- c.shed
	ch <- c.heldBack
	ch <- c.waiting
	ch <- c.handshakes
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, t := range c.tables {
		t.mu.Lock()
		tallies := maps.Clone(t.tallies)
		t.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(tallies)) {
			of := tallies[name]
			ch <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(of.open.Load()), name)
			ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(of.refused.Load()), name)
			ch <- prometheus.MustNewConstMetric(c.shed, prometheus.CounterValue, float64(of.shed.Load()), name)
			ch <- prometheus.MustNewConstMetric(c.heldBack, prometheus.CounterValue, float64(of.heldBack.Load()), name)
		}
		for _, of := range t.Handshakes() {
			ch <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(of.Waiting), of.Listener)
			for reason, n := range of.Refused {
				ch <- prometheus.MustNewConstMetric(c.handshakes, prometheus.CounterValue, float64(n), of.Listener, reason)
			}
		}
	}
}
