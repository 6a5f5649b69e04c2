package dispatch

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	streams   prometheus.Gauge
	lag       prometheus.Histogram
	frames    *prometheus.CounterVec
	items     prometheus.Counter
	snapshots *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "windlass_watch_streams", Help: "Agent streams on this process.",
		}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "windlass_feed_lag_revisions", Help: "Revisions in one delta frame, which is how far its stream was behind.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 14),
		}),
		frames: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_feed_frames_total", Help: "Frames sent to agents, by kind.",
		}, []string{"kind"}),
		items: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_feed_items_total", Help: "Items sent to agents.",
		}),
		snapshots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_feed_snapshots_total", Help: "Snapshots sent to agents, by cause.",
		}, []string{"cause"}),
	}
	reg.MustRegister(m.streams, m.lag, m.frames, m.items, m.snapshots)
	return m
}
