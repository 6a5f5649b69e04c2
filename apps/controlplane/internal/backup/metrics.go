package backup

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// WriteMetrics writes the metrics of a successful backup to the file at path, which it replaces. at is when the backup
// ended, took is how long it took, and size is its size in bytes. The node exporter's textfile collector reads the file.
func WriteMetrics(path string, at time.Time, took time.Duration, size int64, totals Totals) error {
	when := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "windlass_backup_last_success_timestamp_seconds", Help: "Time at which the last whole backup of the control plane's database ended.",
	})
	duration := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "windlass_backup_last_duration_seconds", Help: "Duration of the last whole backup.",
	})
	bytes := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "windlass_backup_last_size_bytes", Help: "Size of the last whole backup, compressed.",
	})
	rows := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "windlass_backup_last_rows", Help: "Rows of the last whole backup.",
	})
	when.Set(float64(at.UnixMilli()) / 1000)
	duration.Set(took.Seconds())
	bytes.Set(float64(size))
	rows.Set(float64(totals.Rows))
	r := prometheus.NewRegistry()
	r.MustRegister(when, duration, bytes, rows)
	return prometheus.WriteToTextfile(path, r)
}
