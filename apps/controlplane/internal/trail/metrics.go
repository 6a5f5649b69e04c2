package trail

import (
	"github.com/prometheus/client_golang/prometheus"
)

func newDropped() prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Name: "windlass_audit_dropped_total",
		Help: "Refused calls and reads that are missing in the audit: there were too many kinds of them in a minute, or the database was away.",
	})
}
