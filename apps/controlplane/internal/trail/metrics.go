package trail

import (
	"github.com/prometheus/client_golang/prometheus"
)

func registerDropped(r prometheus.Registerer) (prometheus.Counter, error) {
	c := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "windlass_audit_dropped_total",
		Help: "Refused calls and reads that are missing in the audit, because there were too many kinds of them in a minute, or the database was not reachable.",
	})
	return c, r.Register(c)
}
