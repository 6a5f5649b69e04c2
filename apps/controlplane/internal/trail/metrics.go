package trail

import (
	"github.com/prometheus/client_golang/prometheus"
)

func registerDropped(r prometheus.Registerer) (prometheus.Counter, error) {
	c := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "windlass_audit_dropped_total",
		Help: "Refused calls and reads that are missing in the audit: there were too many kinds of them in a minute, or the database was away.",
	})
	return c, r.Register(c)
}
