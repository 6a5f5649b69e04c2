package ingest

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	latency    prometheus.Histogram
	batch      prometheus.Histogram
	rows       prometheus.Counter
	heartbeats prometheus.Counter
	stale      prometheus.Counter
	wakes      prometheus.Counter
	dropped    prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "windlass_report_duration_seconds", Help: "Time to store a report and answer it.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "windlass_report_batch_size", Help: "Reports in one transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 9),
		}),
		rows: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_report_instances_total", Help: "Instance states received.",
		}),
		heartbeats: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_report_heartbeats_total", Help: "Reports that only renewed a lease.",
		}),
		stale: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_report_stale_total", Help: "Reports refused because their session was replaced.",
		}),
		wakes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_report_wakes_total", Help: "Apps woken by a report.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_report_notices_dropped_total", Help: "Notices of regions that had more than history keeps.",
		}),
	}
	reg.MustRegister(m.latency, m.batch, m.rows, m.heartbeats, m.stale, m.wakes, m.dropped)
	return m
}
