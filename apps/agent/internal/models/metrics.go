package models

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Failures are counted by these errors of a Loader. Its other errors count as failed connections.
var (
	// ErrRefused means that a server has refused a request.
	ErrRefused = errors.New("the server refused")
	// ErrNotDone means that a server has answered, but has not done what was requested.
	ErrNotDone = errors.New("the server has not done what was requested")
)

// errNotNoted means that the agent could not store a claim before a load.
var errNotNoted = errors.New("cannot store which version is loaded")

// errNoFiles means that the files of a model could not be fetched. It has no text of its own.
var errNoFiles = errors.New("")

// metrics are the metrics of the manager. No label has a model's name, because the number of models
// is not limited.
type metrics struct {
	loads, unloads *prometheus.CounterVec
	loadTime       prometheus.Histogram
	deaths         prometheus.Counter
	evictions      prometheus.Counter
	requests       *prometheus.CounterVec
	requestTime    prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		loads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_agent_model_loads_total",
			Help: "Ended loads of models by servers, by result: loaded, refused (by the server), not_done (the server answered, and the model is not ready), " +
				"timeout, unreachable (the connection failed), no_files (the artifact was not fetched), not_noted (the agent could not write to its disk) or canceled (the agent ended).",
		}, []string{"result"}),
		unloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_agent_model_unloads_total", Help: "Ended unloads of models by servers, by result: unloaded, or as for loads.",
		}, []string{"result"}),
		loadTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "windlass_agent_model_load_time_seconds", Help: "Time from the request of a load to a server until the model was ready there.",
			Buckets: []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800},
		}),
		deaths: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_model_server_ends_total", Help: "Servers that ended while they loaded a model, once for each model.",
		}),
		evictions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_model_evictions_total", Help: "Models that were unloaded from a server to make room for other models.",
		}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_agent_model_load_requests_total",
			Help: "Models that requests have waited for because no server had them, by result: available, or given_up (no request waits any more, and the model is not available).",
		}, []string{"result"}),
		requestTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "windlass_agent_model_request_wait_seconds", Help: "Time from the first request for a model that no server had until gateways sent to it.",
			Buckets: []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600},
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.loads, m.unloads, m.loadTime, m.deaths, m.evictions, m.requests, m.requestTime} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// countEnded counts a load or an unload that has ended.
func (m *metrics) countEnded(load bool, took time.Duration, err error) {
	if !load {
		m.unloads.WithLabelValues(resultOf(err, "unloaded")).Inc()
		return
	}
	m.loads.WithLabelValues(resultOf(err, "loaded")).Inc()
	if err == nil {
		m.loadTime.Observe(took.Seconds())
	}
}

// resultOf returns the result label of err. The label is done if err is nil.
func resultOf(err error, done string) string {
	switch {
	case err == nil:
		return done
	case errors.Is(err, ErrRefused):
		return "refused"
	case errors.Is(err, ErrNotDone):
		return "not_done"
	case errors.Is(err, errNoFiles):
		return "no_files"
	case errors.Is(err, errNotNoted):
		return "not_noted"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return "unreachable"
}
