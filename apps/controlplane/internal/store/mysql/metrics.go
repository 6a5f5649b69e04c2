package mysql

import (
	"database/sql"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

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
			Help: "Reads of the feed that saw a commit but not an earlier one, and were repeated.",
		}),
		parted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_store_parted_total",
			Help: "Transactions of several requests that failed as a whole, so that each request ran again alone.",
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "windlass_store_batch_size",
			Help:    "Requests in one transaction, for requests that may share one.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 6),
		}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "windlass_store_transaction_seconds",
			Help:    "Duration of transactions, retries included, by kind and result.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12),
		}, []string{"kind", "result"}),
	}
}

// registerAll registers the metrics, and the metrics of the connections to both databases. primary and reads are the same
// if there is no separate database for reads.
func (m *metrics) registerAll(r prometheus.Registerer, primary, reads *sql.DB) error {
	all := []prometheus.Collector{m.queries, m.retries, m.torn, m.parted, m.batch, m.seconds, collectors.NewDBStatsCollector(primary, "primary")}
	if reads != primary {
		all = append(all, collectors.NewDBStatsCollector(reads, "read"))
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("store: register metrics: %w", err)
		}
	}
	return nil
}
