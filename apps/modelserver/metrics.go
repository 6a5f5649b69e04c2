package modelserver

import (
	"cmp"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func newHistogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

func newCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func newGauge(name, help string, read func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
}

type echoMetrics struct {
	timeToFirstToken prometheus.Histogram
	endToEnd         prometheus.Histogram
	queueTime        prometheus.Histogram
	promptTokens     prometheus.Counter
	generationTokens prometheus.Counter
	success          *prometheus.CounterVec
	responses        *prometheus.CounterVec
}

func newEchoMetrics(from measured) (recorder, *prometheus.Registry) {
	registry := prometheus.NewRegistry()
	m := &echoMetrics{
		timeToFirstToken: newHistogram("vllm:time_to_first_token_seconds", "Time from a request's arrival to its first token.",
			[]float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160}),
		endToEnd: newHistogram("vllm:e2e_request_latency_seconds", "Time from a request's arrival to its last token.",
			[]float64{.05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480}),
		queueTime: newHistogram("vllm:request_queue_time_seconds", "Time that a request waited for a slot.",
			[]float64{.001, .01, .05, .1, .3, .5, 1, 2.5, 5, 10, 20, 30, 60, 120}),
		promptTokens:     newCounter("vllm:prompt_tokens_total", "Prompt tokens of the requests that got a slot."),
		generationTokens: newCounter("vllm:generation_tokens_total", "Tokens generated."),
		success: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vllm:request_success_total", Help: "Requests that ran, by the reason for which they ended.",
		}, []string{"finished_reason"}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "modelserver_http_responses_total", Help: "Answers to inference requests, by status code.",
		}, []string{"code"}),
	}
	// A series must exist before its first event. A query for a rate treats a missing series as a missing metric.
	for _, reason := range []string{finishStop, finishLength, finishAbort} {
		m.success.WithLabelValues(reason)
	}
	for _, code := range []string{"200", "400", "429", "499", "500", "503"} {
		m.responses.WithLabelValues(code)
	}
	prometheus.WrapRegistererWith(prometheus.Labels{"model_name": from.cfg.Model}, registry).MustRegister(
		m.timeToFirstToken, m.endToEnd, m.queueTime, m.promptTokens, m.generationTokens, m.success, m.responses,
		newGauge("vllm:num_requests_running", "Requests that hold a slot.", from.runningRequests),
		newGauge("vllm:num_requests_waiting", "Requests that wait for a slot.", from.waitingRequests),
		newGauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", from.cache.usedShare),
	)
	return m, registry
}

func (m *echoMetrics) recordAdmission(waited time.Duration) { m.queueTime.Observe(waited.Seconds()) }

func (m *echoMetrics) recordPrefill(tokens int) { m.promptTokens.Add(float64(tokens)) }

func (m *echoMetrics) recordToken(n int, total, _ time.Duration) {
	if n == 0 {
		m.timeToFirstToken.Observe(total.Seconds())
	}
	m.generationTokens.Inc()
}

func (m *echoMetrics) recordEnd(r request) {
	m.success.WithLabelValues(r.finish).Inc()
	m.endToEnd.Observe(r.total.Seconds())
}

func (m *echoMetrics) recordStatus(_ string, status int) {
	m.responses.WithLabelValues(strconv.Itoa(status)).Inc()
}

type vllmMetrics struct {
	timeToFirstToken, interToken, perOutputToken prometheus.Histogram
	endToEnd, queueTime, inference               prometheus.Histogram
	prefill, decode                              prometheus.Histogram
	promptTokens, generationTokens               prometheus.Counter
	requestPrompt, requestGeneration             prometheus.Histogram
	requestMaxTokens                             prometheus.Histogram
	prefixQueries                                prometheus.Counter
	success                                      *prometheus.CounterVec
	responses                                    *prometheus.CounterVec
}

// newVLLMMetrics creates the metrics of vllm/v1/metrics/loggers.py, with the labels model_name and engine. Before
// vLLM 0.11, names of the cache's metrics contained gpu, and the time between tokens was named time per output token.
func newVLLMMetrics(from measured) (recorder, *prometheus.Registry) {
	var (
		firstToken = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
		perToken   = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
		latency    = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
		tokens     = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
	)
	m := &vllmMetrics{
		timeToFirstToken:  newHistogram("vllm:time_to_first_token_seconds", "Time from a request's arrival to its first token.", firstToken),
		perOutputToken:    newHistogram("vllm:request_time_per_output_token_seconds", "Mean time between the tokens of a request.", perToken),
		endToEnd:          newHistogram("vllm:e2e_request_latency_seconds", "Time from a request's arrival to its last token.", latency),
		queueTime:         newHistogram("vllm:request_queue_time_seconds", "Time that a request waited for a slot.", latency),
		inference:         newHistogram("vllm:request_inference_time_seconds", "Time that a request held a slot.", latency),
		prefill:           newHistogram("vllm:request_prefill_time_seconds", "Time from a request's slot to its first token.", latency),
		decode:            newHistogram("vllm:request_decode_time_seconds", "Time from a request's first token to its last.", latency),
		promptTokens:      newCounter("vllm:prompt_tokens_total", "Prompt tokens of the requests that got a slot."),
		generationTokens:  newCounter("vllm:generation_tokens_total", "Tokens generated."),
		requestPrompt:     newHistogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", tokens),
		requestGeneration: newHistogram("vllm:request_generation_tokens", "Tokens generated for a request.", tokens),
		requestMaxTokens:  newHistogram("vllm:request_params_max_tokens", "Tokens that a request allowed.", tokens),
		success: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vllm:request_success_total", Help: "Requests that ran, by the reason for which they ended.",
		}, []string{"finished_reason"}),
		responses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "http_requests_total", Help: "Answers to inference requests of the command line of vLLM, by the class of the status.",
		}, []string{"handler", "method", "status"}),
	}
	usage := newGauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", from.cache.usedShare)
	m.interToken = newHistogram("vllm:inter_token_latency_seconds", "Time between two tokens of a request.", perToken)
	// The model has no prefix cache, so all tokens are looked up and no token is found.
	m.prefixQueries = newCounter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.")
	hits := newCounter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache: none, because the model has no such cache.")
	if olderThan(from.cfg.EngineVersion, 0, 11) {
		usage = newGauge("vllm:gpu_cache_usage_perc", "As vllm:kv_cache_usage_perc, before 0.11.", from.cache.usedShare)
		m.interToken = newHistogram("vllm:time_per_output_token_seconds", "As vllm:inter_token_latency_seconds, before 0.11.", perToken)
		m.prefixQueries = newCounter("vllm:gpu_prefix_cache_queries_total", "As vllm:prefix_cache_queries_total, before 0.11.")
		hits = newCounter("vllm:gpu_prefix_cache_hits_total", "As vllm:prefix_cache_hits_total, before 0.11.")
	}
	for _, reason := range []string{finishStop, finishLength, finishAbort} {
		m.success.WithLabelValues(reason)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.responses)
	if from.cfg.Engine.NoMetrics {
		return m, registry
	}
	prometheus.WrapRegistererWith(prometheus.Labels{"model_name": from.cfg.Model, "engine": "0"}, registry).MustRegister(
		m.timeToFirstToken, m.interToken, m.perOutputToken, m.endToEnd, m.queueTime, m.inference, m.prefill, m.decode,
		m.promptTokens, m.generationTokens, m.requestPrompt, m.requestGeneration, m.requestMaxTokens, m.prefixQueries, hits, m.success, usage,
		newCounter("vllm:num_preemptions_total", "Requests that lost their slot to other requests: none, because a slot is held to the end."),
		newGauge("vllm:num_requests_running", "Requests that hold a slot.", from.runningRequests),
		newGauge("vllm:num_requests_waiting", "Requests that wait for a slot.", from.waitingRequests),
	)
	return m, registry
}

func (m *vllmMetrics) recordAdmission(waited time.Duration) { m.queueTime.Observe(waited.Seconds()) }

func (m *vllmMetrics) recordPrefill(tokens int) {
	m.promptTokens.Add(float64(tokens))
	m.prefixQueries.Add(float64(tokens))
}

func (m *vllmMetrics) recordToken(n int, total, since time.Duration) {
	m.generationTokens.Inc()
	if n == 0 {
		m.timeToFirstToken.Observe(total.Seconds())
		return
	}
	m.interToken.Observe(since.Seconds())
}

func (m *vllmMetrics) recordEnd(r request) {
	m.success.WithLabelValues(r.finish).Inc()
	m.endToEnd.Observe(r.total.Seconds())
	m.inference.Observe((r.total - r.queued).Seconds())
	m.requestPrompt.Observe(float64(r.prompt))
	m.requestGeneration.Observe(float64(r.generated))
	m.requestMaxTokens.Observe(float64(r.limit))
	if r.generated == 0 {
		return
	}
	m.prefill.Observe((r.first - r.queued).Seconds())
	m.decode.Observe(r.decode.Seconds())
	if r.generated > 1 {
		m.perOutputToken.Observe(r.decode.Seconds() / float64(r.generated-1))
	}
}

func (m *vllmMetrics) recordStatus(path string, status int) {
	// A client that left got no answer.
	if status != statusClosedRequest {
		m.responses.WithLabelValues(path, http.MethodPost, strconv.Itoa(status/100)+"xx").Inc()
	}
}

type sglangMetrics struct {
	timeToFirstToken, interToken, endToEnd, queueTime prometheus.Histogram
	promptTokens, generationTokens, requests, aborted prometheus.Counter
	httpRequests, httpResponses                       *prometheus.CounterVec
	speed                                             *throughput
}

// newSGLangMetrics creates the metrics of python/sglang/srt/metrics/collector.py. Metrics of the scheduler
// also have its type and ranks as labels.
func newSGLangMetrics(from measured) (recorder, *prometheus.Registry) {
	var (
		firstToken = []float64{.1, .2, .4, .6, .8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}
		latency    = []float64{.1, .2, .4, .6, .8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400}
		perToken   = []float64{.002, .004, .006, .008, .01, .015, .02, .025, .03, .035, .04, .06, .08, .1, .2, .4, .6, .8, 1, 2, 4, 6, 8}
		queue      = []float64{0, .1, .2, .5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000}
	)
	m := &sglangMetrics{
		timeToFirstToken: newHistogram("sglang:time_to_first_token_seconds", "Time from a request's arrival to its first token.", firstToken),
		interToken:       newHistogram("sglang:inter_token_latency_seconds", "Time between two tokens of a request.", perToken),
		endToEnd:         newHistogram("sglang:e2e_request_latency_seconds", "Time from a request's arrival to its last token.", latency),
		queueTime:        newHistogram("sglang:queue_time_seconds", "Time that a request waited for a slot.", queue),
		promptTokens:     newCounter("sglang:prompt_tokens_total", "Prompt tokens of the requests that ended."),
		generationTokens: newCounter("sglang:generation_tokens_total", "Tokens generated for the requests that ended."),
		requests:         newCounter("sglang:num_requests_total", "Requests that ran to their end."),
		aborted:          newCounter("sglang:num_aborted_requests_total", "Requests that ran and were aborted."),
		httpRequests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sglang:http_requests_total", Help: "Inference requests by endpoint.",
		}, []string{"endpoint", "method"}),
		httpResponses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sglang:http_responses_total", Help: "Answers to inference requests by endpoint and status.",
		}, []string{"endpoint", "status_code", "method"}),
		speed: &throughput{},
	}
	registry := prometheus.NewRegistry()
	model := prometheus.Labels{"model_name": from.cfg.Model}
	registry.MustRegister(m.httpRequests, m.httpResponses)
	prometheus.WrapRegistererWith(model, registry).MustRegister(m.timeToFirstToken, m.interToken, m.endToEnd, m.promptTokens, m.generationTokens, m.requests, m.aborted)
	scheduler := prometheus.Labels{"engine_type": cmp.Or(from.cfg.Engine.Role, "unified"), "tp_rank": "0", "pp_rank": "0"}
	prometheus.WrapRegistererWith(model, prometheus.WrapRegistererWith(scheduler, registry)).MustRegister(
		m.queueTime,
		newGauge("sglang:num_running_reqs", "Requests that hold a slot.", from.runningRequests),
		newGauge("sglang:num_queue_reqs", "Requests that wait for a slot.", from.waitingRequests),
		newGauge("sglang:num_used_tokens", "Tokens in the KV cache.", func() float64 { return float64(from.cache.held.Load()) }),
		newGauge("sglang:token_usage", "Share of the KV cache in use; 1 is all of it.", from.cache.usedShare),
		newGauge("sglang:gen_throughput", "Tokens generated in the last whole second.", m.speed.perSecond),
		newGauge("sglang:cache_hit_rate", "Share of prompt tokens found in the prefix cache: 0, because the model has no such cache.", func() float64 { return 0 }),
		newGauge("sglang:num_retracted_reqs", "Requests that lost their slot to other requests: none, because a slot is held to the end.", func() float64 { return 0 }),
	)
	return m, registry
}

func (m *sglangMetrics) recordAdmission(waited time.Duration) { m.queueTime.Observe(waited.Seconds()) }

func (m *sglangMetrics) recordPrefill(int) {}

func (m *sglangMetrics) recordToken(n int, total, since time.Duration) {
	m.speed.countToken()
	if n == 0 {
		m.timeToFirstToken.Observe(total.Seconds())
		return
	}
	m.interToken.Observe(since.Seconds())
}

func (m *sglangMetrics) recordEnd(r request) {
	if r.finish == finishAbort {
		m.aborted.Inc()
		return
	}
	m.requests.Inc()
	m.promptTokens.Add(float64(r.prompt))
	m.generationTokens.Add(float64(r.generated))
	m.endToEnd.Observe(r.total.Seconds())
}

func (m *sglangMetrics) recordStatus(path string, status int) {
	m.httpRequests.WithLabelValues(path, http.MethodPost).Inc()
	// A client that left got no answer.
	if status != statusClosedRequest {
		m.httpResponses.WithLabelValues(path, strconv.Itoa(status), http.MethodPost).Inc()
	}
}
