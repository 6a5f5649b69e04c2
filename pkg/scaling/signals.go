package scaling

import (
	"fmt"
	"slices"
	"strings"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// signals are the names of the engine metrics that a metric type reads, as in EngineMetric.signal.
var signals = map[MetricType]string{Queue: "queue", KVCache: "cache"}

// LacksSignal reports whether instances of an engine with these metrics have no value for the metric type.
func LacksSignal(t MetricType, engine []*windlassv1.EngineMetric) bool {
	signal, read := signals[t]
	return read && !slices.ContainsFunc(engine, func(m *windlassv1.EngineMetric) bool { return m.GetSignal() == signal })
}

// CheckSignals returns the first metric of the policy that the engine does not have, or nil. preset names the preset
// of the engine, such as "tgi/1", and is empty for an app without a preset. Engine metrics of such an app are unknown:
// its queue is then that of the gateways, and it cannot follow kvCache.
func CheckSignals(p *windlassv1.ScalingPolicy, preset string, engine []*windlassv1.EngineMetric) *Fault {
	if fault := checkSignals(p.GetMetrics(), preset, engine); fault != nil {
		return fault
	}
	for i, r := range p.GetRoles() {
		if fault := checkSignals(r.GetMetrics(), preset, engine); fault != nil {
			fault.Field = fmt.Sprintf("roles[%d].%s", i, fault.Field)
			return fault
		}
	}
	return nil
}

func checkSignals(metrics []*windlassv1.ScalingMetric, preset string, engine []*windlassv1.EngineMetric) *Fault {
	for i, m := range metrics {
		t := TypeOf(m.GetType())
		if !LacksSignal(t, engine) {
			continue
		}
		field := fmt.Sprintf("metrics[%d].type", i)
		if preset != "" {
			return &Fault{field, fmt.Sprintf("preset %s names no metric of the engine for %s", preset, t), "Use " + usableTypes(engine, false) + "."}
		}
		if t == KVCache {
			return &Fault{
				field, "kvCache is read from the engine by the names of a preset, but the app has no serve",
				"Use " + usableTypes(nil, true) + ". Or set serve, if one role serves the model with an engine of a preset.",
			}
		}
	}
	return nil
}

// usableTypes lists the metric types that an app with these engine metrics can follow. gateways means that a queue at
// gateways alone is enough.
func usableTypes(engine []*windlassv1.EngineMetric, gateways bool) string {
	var names []string
	for _, t := range []MetricType{InFlight, RequestsPerSecond, Queue, KVCache, CPU, Memory, FirstToken, Latency} {
		if gateways && t == Queue || !LacksSignal(t, engine) {
			names = append(names, string(t))
		}
	}
	return strings.Join(names, ", ") + " or prometheus"
}
