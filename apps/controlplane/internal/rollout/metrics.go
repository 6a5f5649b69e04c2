package rollout

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/batch"
)

type metrics struct {
	duration *prometheus.HistogramVec
	status   *prometheus.CounterVec
	build    prometheus.Histogram
	attempts prometheus.Histogram
	step     prometheus.Histogram
	batch    prometheus.Histogram
	waited   prometheus.Histogram
	broken   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "deployment_workflow_duration_seconds",
			Help: "Time from a rollout's creation to its end.",
			// A process may start in a second, while a large model may load for half an hour.
			Buckets: []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200},
		}, []string{"status"}),
		status: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deployment_workflow_status",
			Help: "Rollouts that ended, by how.",
		}, []string{"status"}),
		build: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "deployment_build_duration_seconds",
			Help:    "Time that one look-up of an image's digest took.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2.5, 9),
		}),
		attempts: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "deployment_polling_attempts",
			Help:    "Steps of a rollout that found nothing to do, observed at its end.",
			Buckets: []float64{0, 1, 2, 5, 10, 20, 50, 100, 200, 500},
		}),
	}
	m.step = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "deployment_workflow_step_duration_seconds",
		Help:    "Time that steps of rollouts took, including failed steps, which are repeated.",
		Buckets: prometheus.ExponentialBuckets(0.001, 3, 10),
	})
	m.batch = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "deployment_workflow_step_batch_size",
		Help:    "Apps whose steps one transaction decided, including transactions that failed and were split.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 6),
	})
	m.waited = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "deployment_workflow_step_wait_seconds",
		Help:    "Time that the oldest step of a transaction waited for it to begin.",
		Buckets: prometheus.ExponentialBuckets(0.001, 3, 10),
	})
	m.broken = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "deployment_plan_violations_total",
		Help: "Rules of staged rollouts that plans broke. Anything but 0 is a bug.",
	})
	reg.MustRegister(m.duration, m.status, m.build, m.attempts, m.step, m.batch, m.waited, m.broken)
	return m
}

func (m *metrics) countCommitted(o batch.Outcome) {
	m.batch.Observe(float64(o.Size))
	m.waited.Observe(o.Waited.Seconds())
}

func (m *metrics) countFinished(r model.Rollout) {
	status := strings.ToLower(strings.TrimPrefix(r.Status.String(), "ROLLOUT_STATUS_"))
	m.duration.WithLabelValues(status).Observe(float64(r.FinishedAt-r.CreatedAt) / 1000)
	m.status.WithLabelValues(status).Inc()
	m.attempts.Observe(float64(r.Attempts))
}

// gauges are the gauges of Gauges.
type gauges struct {
	// regions and status count topology, byState counts regions, and the rest is about rollouts in flight.
	regions prometheus.Gauge
	status  *prometheus.GaugeVec
	byState *prometheus.GaugeVec
	active  prometheus.Gauge
	oldest  prometheus.Gauge
	overdue prometheus.Gauge
}

func registerGauges(reg prometheus.Registerer) gauges {
	g := gauges{
		regions: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "deployment_topology_regions",
			Help: "Regions that have anything assigned.",
		}),
		status: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "deployment_topology_status",
			Help: "Assignments of deployments to regions that have not stopped, by status.",
		}, []string{"status"}),
		byState: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "windlass_regions",
			Help: "Regions by status: pending without an agent so far, connected, unreachable.",
		}, []string{"status"}),
		active: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "windlass_rollouts_in_flight",
			Help: "Rollouts that have begun and not ended.",
		}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "windlass_rollout_oldest_seconds",
			Help: "Age of the oldest rollout in flight; 0: there is none.",
		}),
		overdue: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "windlass_rollout_step_overdue_seconds",
			Help: "How late the step of a rollout is that has been due for the longest time; 0: none is due.",
		}),
	}
	reg.MustRegister(g.regions, g.status, g.byState, g.active, g.oldest, g.overdue)
	return g
}

func registerSwept(reg prometheus.Registerer) prometheus.Counter {
	swept := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "windlass_rollout_swept_total",
		Help: "Wake-ups that were sent because they were due, or sent again because they were lost or behind a backlog.",
	})
	reg.MustRegister(swept)
	return swept
}
