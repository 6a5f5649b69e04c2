package access

import "github.com/prometheus/client_golang/prometheus"

func newCalls(reg prometheus.Registerer) *prometheus.CounterVec {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_agent_kubernetes_calls_total", Help: "Calls to the Kubernetes API by verb, resource and answer.",
	}, []string{"verb", "resource", "code"})
	reg.MustRegister(calls)
	return calls
}
