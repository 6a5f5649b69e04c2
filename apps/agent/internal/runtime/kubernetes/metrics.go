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
			Name: "windlass_agent_kubernetes_drift_total", Help: "Objects that somebody changed or removed, and that were put back.",
		}, []string{"kind"}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_kubernetes_conflicts_total", Help: "Times that a field of ours was found to be somebody else's.",
		}),
		forced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_kubernetes_forced_deletions_total", Help: "Pods of lost nodes that were deleted without the node's word.",
		}),
		ended: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_kubernetes_ended_pods_removed_total", Help: "Pods that were over, as by eviction, and were removed.",
		}),
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_kubernetes_rank_restarts_total", Help: "Times that all ranks of an instance of several hosts were started anew, because one had ended.",
		}),
	}
	reg.MustRegister(m.drift, m.conflicts, m.forced, m.ended, m.restarts)
	return m
}
