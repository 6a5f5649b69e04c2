package rpc

import (
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of the handlers. A nil metrics counts nothing.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	streams  *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	if registerer == nil {
		return nil
	}
	return &metrics{
		requests: registerOnce(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rpc_server_requests_total",
			Help: "Calls that ended, unary and streams, by procedure and code.",
		}, []string{"procedure", "code"})),
		duration: registerOnce(registerer, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rpc_server_request_duration_seconds",
			Help: "Time in the handlers of unary calls, by procedure and code.",
			// The first bucket is for answers from memory. The last bucket ends at the default deadline.
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"procedure", "code"})),
		streams: registerOnce(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rpc_server_streams",
			Help: "Streams that are open now, by procedure.",
		}, []string{"procedure"})),
	}
}

// registerOnce registers a collector, or returns the existing one, so that two sets of handlers of one program
// share their metrics.
func registerOnce[C prometheus.Collector](registerer prometheus.Registerer, collector C) C {
	err := registerer.Register(collector)
	if duplicate, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := duplicate.ExistingCollector.(C); ok {
			return existing
		}
	}
	if err != nil {
		// Another collector has the same name, which is a fault of the program.
		panic(fmt.Errorf("rpc: register metrics: %w", err))
	}
	return collector
}

func (m *metrics) countUnary(procedure string, err error, took time.Duration) {
	if m == nil {
		return
	}
	m.requests.WithLabelValues(procedure, codeName(err)).Inc()
	m.duration.WithLabelValues(procedure, codeName(err)).Observe(took.Seconds())
}

// countRefused counts a call that did not get past the gate.
func (m *metrics) countRefused(procedure string, err error) {
	if m != nil {
		m.requests.WithLabelValues(procedure, codeName(err)).Inc()
	}
}

func (m *metrics) streamOpened(procedure string) {
	if m != nil {
		m.streams.WithLabelValues(procedure).Inc()
	}
}

func (m *metrics) streamClosed(procedure string, err error) {
	if m == nil {
		return
	}
	m.streams.WithLabelValues(procedure).Dec()
	m.requests.WithLabelValues(procedure, codeName(err)).Inc()
}

// codeName returns the value of the label code.
func codeName(err error) string {
	if err == nil || connect.IsNotModifiedError(err) {
		return "ok"
	}
	return connect.CodeOf(err).String()
}

// registerMetrics creates the budget's metrics, and registers them unless registerer is nil.
func (b *Budget) registerMetrics(name string, registerer prometheus.Registerer) {
	labels := prometheus.Labels{"budget": name}
	b.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "rpc_server_budget_refusals_total", ConstLabels: labels,
		Help: "Calls refused because the messages of other calls filled the memory budget.",
	})
	used := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rpc_server_budget_used_bytes", ConstLabels: labels,
		Help: "Bytes of request messages that count against the memory budget now.",
	}, func() float64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		return float64(b.used)
	})
	if registerer != nil {
		registerOnce[prometheus.Collector](registerer, b.refused)
		registerOnce[prometheus.Collector](registerer, used)
	}
}
