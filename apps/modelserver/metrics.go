package modelserver

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics carries vLLM's names, so that dashboards, alerts and autoscalers made
// for vLLM work unchanged.
type metrics struct {
	registry         *prometheus.Registry
	cachedTokens     atomic.Int64
	timeToFirstToken prometheus.Histogram
	endToEnd         prometheus.Histogram
	queueTime        prometheus.Histogram
	promptTokens     prometheus.Counter
	generationTokens prometheus.Counter
	success          *prometheus.CounterVec
	responses        *prometheus.CounterVec
}

func newMetrics(model string, cacheTokens int, queue *admission) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		timeToFirstToken: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "vllm:time_to_first_token_seconds",
			Help:    "Time from a request's arrival to its first token.",
			Buckets: []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160},
		}),
		endToEnd: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "vllm:e2e_request_latency_seconds",
			Help:    "Time from a request's arrival to its last token.",
			Buckets: []float64{.05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480},
		}),
		queueTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "vllm:request_queue_time_seconds",
			Help:    "Time that a request waited for a slot.",
			Buckets: []float64{.001, .01, .05, .1, .3, .5, 1, 2.5, 5, 10, 20, 30, 60, 120},
		}),
		promptTokens: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "vllm:prompt_tokens_total", Help: "Prompt tokens of the requests that got a slot.",
		}),
		generationTokens: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "vllm:generation_tokens_total", Help: "Tokens generated.",
		}),
		success: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vllm:request_success_total", Help: "Requests that ran, by the reason for which they ended.",
		}, []string{"finished_reason"}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "modelserver_http_responses_total", Help: "Answers to inference requests, by status code.",
		}, []string{"code"}),
	}
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
	}
	// A series that is missing until its first event looks like a missing metric to a query
	// that computes a rate.
	for _, reason := range []string{finishStop, finishLength, finishAbort} {
		m.success.WithLabelValues(reason)
	}
	for _, code := range []string{"200", "400", "429", "499", "500", "503"} {
		m.responses.WithLabelValues(code)
	}
	prometheus.WrapRegistererWith(prometheus.Labels{"model_name": model}, m.registry).MustRegister(
		m.timeToFirstToken, m.endToEnd, m.queueTime, m.promptTokens, m.generationTokens, m.success, m.responses,
		gauge("vllm:num_requests_running", "Requests that hold a slot.", func() float64 {
			running, _ := queue.load()
			return float64(running)
		}),
		gauge("vllm:num_requests_waiting", "Requests that wait for a slot.", func() float64 {
			_, waiting := queue.load()
			return float64(waiting)
		}),
		gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", func() float64 {
			return min(1, float64(m.cachedTokens.Load())/float64(cacheTokens))
		}),
	)
	return m
}
