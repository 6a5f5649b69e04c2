package kubernetes

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	drift     *prometheus.CounterVec
	conflicts prometheus.Counter
	forced    prometheus.Counter
	ended     prometheus.Counter
	restarts  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_agent_kubernetes_drift_total", Help: "Objects that another client changed or removed, and that the agent put back.",
		}, []string{"kind"}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_kubernetes_conflicts_total", Help: "Conflicts about a field of the agent's objects that another client owns.",
		}),
		forced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_kubernetes_forced_deletions_total", Help: "Pods of lost nodes that were deleted without confirmation from the node.",
		}),
		ended: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_kubernetes_ended_pods_removed_total", Help: "Removed pods that had ended, for example by eviction.",
		}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_kubernetes_rank_restarts_total", Help: "Restarts of all ranks of an instance of several hosts, because one rank had ended.",
		}),
	}
	reg.MustRegister(m.drift, m.conflicts, m.forced, m.ended, m.restarts)
	return m
}
