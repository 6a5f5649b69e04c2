package process

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// metrics are the metrics of the runtime. No label names a deployment, because the number of
// deployments is not limited.
type metrics struct {
	checks  *prometheus.CounterVec
	starts  prometheus.Counter
	ends    *prometheus.CounterVec
	startup prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, states func() map[windlassv1.InstanceStatus]int) (*metrics, error) {
	m := &metrics{
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deployment_health_checks_total", Help: "Health checks of instances by result: pass or fail.",
		}, []string{"result"}),
		starts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "deployment_instance_starts_total", Help: "Starts of instances, restarts included.",
		}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deployment_instance_ends_total", Help: "Ends of instances by reason.",
		}, []string{"reason"}),
		startup: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "deployment_instance_startup_time_seconds", Help: "Time from the start of an instance until it is ready for the first time.",
			// The buckets range from a fraction of a second, for a small server, to half an hour of
			// loading.
			Buckets: []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800},
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.checks, m.starts, m.ends, m.startup, &stateCollector{states: states}} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) countCheck(pass bool) {
	result := "fail"
	if pass {
		result = "pass"
	}
	m.checks.WithLabelValues(result).Inc()
}

func (m *metrics) countReady(r record) {
	m.startup.Observe(max(r.ReadyAt.Sub(r.StartedAt), time.Millisecond).Seconds())
}

func (m *metrics) countEnded(e *ending) {
	reason := runtime.ReasonStopped
	if e != nil {
		reason = e.Reason
	}
	m.ends.WithLabelValues(reason).Inc()
}

// stateCollector counts instances at each scrape, so the figure always agrees with the result of
// Observe.
type stateCollector struct {
	states func() map[windlassv1.InstanceStatus]int
}

var instancesByStatus = prometheus.NewDesc("deployment_instances_by_status", "Instances of this region by status.", []string{"status"}, nil)

func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) { ch <- instancesByStatus }

func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	counts := c.states()
	for st, name := range statusNames {
		ch <- prometheus.MustNewConstMetric(instancesByStatus, prometheus.GaugeValue, float64(counts[st]), name)
	}
}

var statusNames = map[windlassv1.InstanceStatus]string{
	windlassv1.InstanceStatus_INSTANCE_STATUS_PENDING:    "pending",
	windlassv1.InstanceStatus_INSTANCE_STATUS_CREATING:   "creating",
	windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING:    "running",
	windlassv1.InstanceStatus_INSTANCE_STATUS_READY:      "ready",
	windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING:   "draining",
	windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED:     "failed",
	windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED: "terminated",
}
