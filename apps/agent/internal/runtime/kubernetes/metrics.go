package kubernetes

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/agent/internal/gang"
)

type metrics struct {
	drift     *prometheus.CounterVec
	conflicts prometheus.Counter
	forced    prometheus.Counter
	ended     prometheus.Counter
	restarts  prometheus.Counter

	gangStarts, gangTimeouts prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, g *gangs) *metrics {
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
		gangStarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_kubernetes_gang_starts_total", Help: "Gangs that had waited and started, because there was room for all of their pods.",
		}),
		gangTimeouts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_agent_kubernetes_gang_timeouts_total", Help: "Gangs whose pods were removed, because not all of them had a node in time.",
		}),
	}
	reg.MustRegister(m.drift, m.conflicts, m.forced, m.ended, m.restarts, m.gangStarts, m.gangTimeouts)
	for name, state := range map[string]gang.State{"waits": gang.Waits, "starts": gang.Starts, "givesBack": gang.GivesBack} {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "windlass_agent_kubernetes_gangs", ConstLabels: prometheus.Labels{"state": name},
			Help: "Gangs of pods that are not complete, by state: waits for room, starts, or givesBack after a timeout.",
		}, func() float64 { return float64(g.countIn(state)) }))
	}
	return m
}
