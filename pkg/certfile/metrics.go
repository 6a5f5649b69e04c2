package certfile

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

var notAfter = prometheus.NewDesc("windlass_certificate_not_after_seconds",
	"Unix time at which the certificate in a file expires. For a file of CAs, the earliest time. The label flag is the flag that names the file.",
	[]string{"flag", "file"}, nil)

// Describe implements prometheus.Collector.
func (f *Files) Describe(out chan<- *prometheus.Desc) { out <- notAfter }

// Collect implements prometheus.Collector. It reads changed files again, so that the metric is right even
// without new connections.
func (f *Files) Collect(out chan<- prometheus.Metric) {
	for _, u := range f.usedFiles() {
		if end, ok := u.end(); ok {
			out <- prometheus.MustNewConstMetric(notAfter, prometheus.GaugeValue, float64(end.Unix()), strings.TrimPrefix(u.flag, "--"), u.path)
		}
	}
}
