package onnxserver

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are the metrics of a server. Labels have the names of loaded models only, so that clients cannot add names.
type metrics struct {
	requests  *prometheus.CounterVec
	queueTime prometheus.Histogram
	inference *prometheus.HistogramVec
	loads     *prometheus.CounterVec
	unloads   *prometheus.CounterVec
	loadTime  prometheus.Histogram
}

func newMetrics(s *Server) (*metrics, *prometheus.Registry) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "onnxserver_requests_total", Help: "Ended inference requests by model (empty if it was not loaded), protocol (http or grpc) and HTTP status.",
		}, []string{"model", "protocol", "status"}),
		queueTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "onnxserver_queue_time_seconds", Help: "Time that requests waited for a slot.", Buckets: []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30},
		}),
		inference: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "onnxserver_inference_time_seconds", Help: "Time that a model ran for one request.", Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30},
		}, []string{"model"}),
		loads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "onnxserver_model_loads_total", Help: "Ended requests to load a model, by result: loaded or failed.",
		}, []string{"result"}),
		unloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "onnxserver_model_unloads_total", Help: "Ended requests to unload a model, by result: unloaded or failed.",
		}, []string{"result"}),
		loadTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "onnxserver_model_load_time_seconds", Help: "Time that ONNX Runtime took to load a model.", Buckets: []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120},
		}),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		m.requests, m.queueTime, m.inference, m.loads, m.unloads, m.loadTime, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "onnxserver_running_requests", Help: "Inferences that run."}, func() float64 { return float64(s.running.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "onnxserver_waiting_requests", Help: "Requests that wait for a slot."}, func() float64 { return float64(s.waiting.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "onnxserver_models_loaded", Help: "Models that are loaded."}, func() float64 {
			loaded := 0
			for _, m := range s.models.listModels() {
				if m.state == modelReady {
					loaded++
				}
			}
			return float64(loaded)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "onnxserver_model_memory_bytes", Help: "Memory that is reserved for models."}, func() float64 {
			s.models.mu.Lock()
			defer s.models.mu.Unlock()
			return float64(s.models.usedMiB) * (1 << 20)
		}),
	)
	return m, registry
}

func (m *metrics) countLoad(err error) {
	if err != nil {
		m.loads.WithLabelValues("failed").Inc()
		return
	}
	m.loads.WithLabelValues("loaded").Inc()
}

func (m *metrics) countUnload(err error) {
	if err != nil {
		m.unloads.WithLabelValues("failed").Inc()
		return
	}
	m.unloads.WithLabelValues("unloaded").Inc()
}

func (m *metrics) observeLoad(since time.Time) { m.loadTime.Observe(time.Since(since).Seconds()) }
