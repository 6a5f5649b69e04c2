package mysql

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	queries *prometheus.CounterVec
	retries *prometheus.CounterVec
	torn    prometheus.Counter
	parted  prometheus.Counter
	batch   prometheus.Histogram
	seconds *prometheus.HistogramVec
}

func newMetrics() *metrics {
	return &metrics{
		queries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_store_queries_total",
			Help: "Statements sent to the database, by the query's name.",
		}, []string{"query"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_store_transaction_retries_total",
			Help: "Transactions that ran again, by reason.",
		}, []string{"reason"}),
		torn: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_store_torn_reads_total",
			Help: "Reads of the feed that saw a commit without one before it, and were repeated.",
		}),
		parted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_store_parted_total",
			Help: "Transactions of several works that failed as a whole, so that each was done again alone.",
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "windlass_store_batch_size",
			Help:    "Works in one transaction, of those that may share one.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 6),
		}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "windlass_store_transaction_seconds",
			Help:    "Duration of transactions, retries included, by kind and result.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12),
		}, []string{"kind", "result"}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.queries, m.retries, m.torn, m.parted, m.batch, m.seconds}
}
