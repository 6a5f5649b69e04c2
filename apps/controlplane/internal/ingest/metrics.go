package ingest

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	latency    prometheus.Histogram
	batch      prometheus.Histogram
	rows       prometheus.Counter
	heartbeats prometheus.Counter
	stale      prometheus.Counter
	wakes      prometheus.Counter
	dropped    prometheus.Counter
	refused    *prometheus.CounterVec
	loads      prometheus.Counter
	loadAge    prometheus.Histogram
	// loadsDropped counts dropped loads by reason.
	loadsDropped *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, s *Service) *metrics {
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
			Name: "windlass_report_notices_dropped_total", Help: "Notices that were dropped because their region had too many.",
		}),
	}
	m.loads = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "windlass_load_reports_total", Help: "Loads of apps in a region that were received and can be used.",
	})
	m.loadAge = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "windlass_load_report_age_seconds", Help: "Time from the measurement of a load, by the agent's clock, to its arrival.",
		Buckets: []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60},
	})
	m.loadsDropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_load_reports_dropped_total", Help: "Loads of apps that were dropped: invalid (a figure is not a number, negative or huge) or unknown (the app is not scaled in the region, or no process is known to have the region's stream).",
	}, []string{"why"})
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_report_refused_total", Help: "Reports that were refused because too many reports wait, by cause: behind, crowded or full.",
	}, []string{"why"})
	now := func(name, help string, value func(limits) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(s.currentLimits()) })
	}
	reg.MustRegister(m.latency, m.batch, m.rows, m.heartbeats, m.stale, m.wakes, m.dropped, m.refused, m.loads, m.loadAge, m.loadsDropped,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "windlass_report_delay_seconds", Help: "Estimated wait of a report with instances that arrives now.",
		}, func() float64 { return s.queue.loadAt(time.Now()).delay.Seconds() }),
		now("windlass_report_interval_seconds", "Minimum time between two reports that agents must keep.", func(l limits) float64 { return l.interval.Seconds() }),
		now("windlass_report_pause_seconds", "Minimum time between two reports with instances that agents must keep.", func(l limits) float64 { return l.pause.Seconds() }),
		now("windlass_report_instances", "Maximum number of instances in a report that agents must keep.", func(l limits) float64 { return float64(l.instances) }),
	)
	return m
}
