package analysis

import (
	"strings"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// template holds the queries of a well-known figure. Model servers use different names for its series,
// and each server exports one of them.
type template struct {
	query, samples string
	minSamples     int32
}

// Counts of HTTP answers. The HTTP middleware of vLLM and SGLang has the label status, and Windlass'
// own model server has the label code.
const (
	answers = `(sum(increase(http_requests_total{{{selector}}}[{{window}}]) or increase(modelserver_http_responses_total{{{selector}}}[{{window}}])))`
	// vector(0), because before the first error there is no series of errors.
	errors5xx = `(sum(increase(http_requests_total{{{selector}},status=~"5.."}[{{window}}]) or increase(modelserver_http_responses_total{{{selector}},code=~"5.."}[{{window}}])) or vector(0))`
)

var templates = map[windlassv1.AnalysisCheck_Template]template{
	windlassv1.AnalysisCheck_TEMPLATE_ERROR_RATE: {
		query: errors5xx + " / " + answers, samples: answers, minSamples: defaultMinRequests,
	},
	windlassv1.AnalysisCheck_TEMPLATE_LATENCY_P95: {
		query:      p95("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds", "tgi_request_duration"),
		samples:    observedIn("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds", "tgi_request_duration"),
		minSamples: defaultMinRequests,
	},
	windlassv1.AnalysisCheck_TEMPLATE_TIME_TO_FIRST_TOKEN: {
		query:      p95("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
		samples:    observedIn("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
		minSamples: defaultMinRequests,
	},
	windlassv1.AnalysisCheck_TEMPLATE_QUEUE_LENGTH: {
		query:      meanOf("vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size"),
		samples:    valuesOf("vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size"),
		minSamples: defaultMinValues,
	},
	windlassv1.AnalysisCheck_TEMPLATE_GPU_USE: {
		query:      meanOf("DCGM_FI_DEV_GPU_UTIL") + " / 100",
		samples:    valuesOf("DCGM_FI_DEV_GPU_UTIL"),
		minSamples: defaultMinValues,
	},
}

// seriesSelector selects the series that have one of the names, with the suffix.
func seriesSelector(suffix string, names []string) string {
	pattern := strings.Join(names, suffix+"|") + suffix
	return `{__name__=~"` + pattern + `",{{selector}}}[{{window}}]`
}

func p95(names ...string) string {
	return "histogram_quantile(0.95, sum by (le) (rate(" + seriesSelector("_bucket", names) + ")))"
}

func observedIn(names ...string) string {
	return "sum(increase(" + seriesSelector("_count", names) + "))"
}

func meanOf(names ...string) string { return "avg(avg_over_time(" + seriesSelector("", names) + "))" }

func valuesOf(names ...string) string {
	return "sum(count_over_time(" + seriesSelector("", names) + "))"
}
