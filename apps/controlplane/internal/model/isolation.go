package model

import (
	"slices"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RuntimeProcess is the runtime of an agent whose region is one host.
const RuntimeProcess = "process"

// isolatingRuntimes are those that always isolate, although their agents of earlier releases do not announce
// FEATURE_INSTANCE_ISOLATION. Later runtimes are not added, because their agents announce it.
var isolatingRuntimes = []string{"kubernetes"}

// Isolation returns what keeps instances of different workspaces apart in the region, as its agent announces
// it. A region whose agent does not announce it is not isolated, whatever its runtime is.
//
// The agent's word is enough, because only operators share a region of the platform, and they run its agent.
// What the agent of a workspace's own region announces has no effect on other workspaces.
func (r Region) Isolation() windlassv1.Isolation {
	switch {
	case r.AgentRuntime == "":
		return windlassv1.Isolation_ISOLATION_UNSPECIFIED
	case slices.Contains(r.AgentFeatures, agentv1.Feature_FEATURE_INSTANCE_ISOLATION.String()),
		slices.Contains(isolatingRuntimes, r.AgentRuntime):
		return windlassv1.Isolation_ISOLATION_WORKSPACE
	default:
		return windlassv1.Isolation_ISOLATION_NONE
	}
}
