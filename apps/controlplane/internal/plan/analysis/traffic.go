package analysis

import (
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Traffic is the question of a measurement to the gateways of a region. It replaces Queries where
// there is no Prometheus.
type Traffic struct {
	Template windlassv1.AnalysisCheck_Template
	// New and Old are ids of deployments. Old is empty if the versions are not compared.
	New, Old string
	Window   time.Duration
}

// SeenByGateways reports whether gateways measure the figure of the template.
func SeenByGateways(t windlassv1.AnalysisCheck_Template) bool {
	switch t {
	case windlassv1.AnalysisCheck_TEMPLATE_ERROR_RATE, windlassv1.AnalysisCheck_TEMPLATE_LATENCY_P95, windlassv1.AnalysisCheck_TEMPLATE_TIME_TO_FIRST_TOKEN:
		return true
	case windlassv1.AnalysisCheck_TEMPLATE_UNSPECIFIED, windlassv1.AnalysisCheck_TEMPLATE_QUEUE_LENGTH, windlassv1.AnalysisCheck_TEMPLATE_GPU_USE:
	}
	return false
}

// AskGateways returns the question to the gateways, or nil if they do not measure what the check
// needs.
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

// Seen is what the gateways of a region measured of one deployment.
type Seen struct {
	Requests, Errors, Streams uint64
	// In seconds; nil without requests.
	LatencyP95, FirstTokenP95 *float64
}

// Figure returns the figure of the template and the number of its samples. figure is nil if there is none.
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
