package analysis

import (
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Traffic is what a measurement asks the gateways of a region for, where there is no
// Prometheus to ask.
type Traffic struct {
	Template windlassv1.AnalysisCheck_Template
	// New and Old are ids of deployments; no Old: it is not asked for.
	New, Old string
	Window   time.Duration
}

// SeenByGateways reports whether gateways have the figure.
func SeenByGateways(t windlassv1.AnalysisCheck_Template) bool {
	switch t {
	case windlassv1.AnalysisCheck_TEMPLATE_ERROR_RATE, windlassv1.AnalysisCheck_TEMPLATE_LATENCY_P95, windlassv1.AnalysisCheck_TEMPLATE_TIME_TO_FIRST_TOKEN:
		return true
	case windlassv1.AnalysisCheck_TEMPLATE_UNSPECIFIED, windlassv1.AnalysisCheck_TEMPLATE_QUEUE_LENGTH, windlassv1.AnalysisCheck_TEMPLATE_GPU_USE:
	}
	return false
}

// AskGateways returns the question for the gateways; nil when they do not measure what the
// check needs.
func AskGateways(c *windlassv1.AnalysisCheck, fresh Subject, old *Subject) *Traffic {
	if !SeenByGateways(c.GetTemplate()) {
		return nil
	}
	t := &Traffic{Template: c.GetTemplate(), New: fresh.Deployment, Window: fresh.Window}
	if old != nil && Compares(c) {
		t.Old = old.Deployment
	}
	return t
}

// Seen is what the gateways of a region saw of one deployment.
type Seen struct {
	Requests, Errors, Streams uint64
	// Seconds; nil of nothing.
	LatencyP95, FirstTokenP95 *float64
}

// Figure that was asked for, nil if there is none, and of how many samples it is.
func (t *Traffic) Figure(of Seen) (figure, samples *float64) {
	count := func(n uint64) *float64 { return new(float64(n)) }
	switch t.Template {
	case windlassv1.AnalysisCheck_TEMPLATE_ERROR_RATE:
		if of.Requests == 0 {
			return nil, count(0)
		}
		return new(float64(of.Errors) / float64(of.Requests)), count(of.Requests)
	case windlassv1.AnalysisCheck_TEMPLATE_LATENCY_P95:
		return of.LatencyP95, count(of.Requests)
	case windlassv1.AnalysisCheck_TEMPLATE_TIME_TO_FIRST_TOKEN:
		return of.FirstTokenP95, count(of.Streams)
	case windlassv1.AnalysisCheck_TEMPLATE_UNSPECIFIED, windlassv1.AnalysisCheck_TEMPLATE_QUEUE_LENGTH, windlassv1.AnalysisCheck_TEMPLATE_GPU_USE:
	}
	return nil, nil
}
