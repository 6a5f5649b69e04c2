package model

import (
	"slices"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RuntimeProcess is the runtime of agents whose region is one host.
const RuntimeProcess = "process"

// Isolation is what keeps instances of different workspaces apart in the region, as its agent told. Only
// hosts may lack it.
func (r Region) Isolation() windlassv1.Isolation {
	switch {
	case r.AgentRuntime == "":
		return windlassv1.Isolation_ISOLATION_UNSPECIFIED
	case r.AgentRuntime == RuntimeProcess && !slices.Contains(r.AgentFeatures, agentv1.Feature_FEATURE_INSTANCE_ISOLATION.String()):
		return windlassv1.Isolation_ISOLATION_NONE
	default:
		return windlassv1.Isolation_ISOLATION_WORKSPACE
	}
}
