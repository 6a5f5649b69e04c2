package model

import (
	"slices"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// RuntimeProcess is the runtime of an agent that runs processes on its host.
const RuntimeProcess = "process"

// runtimes are the runtimes of agents, by the name that agents announce. TestPlaces of .ci/tools/layout asks
// for each. The zero value holds for a runtime of a later release, and for a region that no agent has joined.
var runtimes = map[string]struct {
	// oneHost means that the region is one host, so that only one instance there can have a fixed port.
	oneHost bool
	// pullsNothing means that instances are programs of the host, and no image is pulled for them.
	pullsNothing bool
	// isolates means that the runtime always isolates, although its agents of earlier releases do not announce
	// FEATURE_INSTANCE_ISOLATION. It is not set for other runtimes, because their agents announce it.
	isolates bool
}{
	RuntimeProcess: {oneHost: true, pullsNothing: true},
	"kubernetes":   {isolates: true},
	"simulated":    {},
}

// IsOneHost reports whether the region is one host, so that only one instance there can have a fixed port.
func (r Region) IsOneHost() bool { return runtimes[r.AgentRuntime].oneHost }

// PullsImages reports whether the region may pull images of instances.
func (r Region) PullsImages() bool { return !runtimes[r.AgentRuntime].pullsNothing }

// Isolation returns what keeps instances of different workspaces apart in the region. If its runtime does not set
// isolates, a region is isolated only if its agent announces it.
//
// The agent's announcement is enough, because only operators share a region of the platform, and they run its agent.
// The announcement of an agent of a workspace's own region has no effect on other workspaces.
func (r Region) Isolation() windlassv1.Isolation {
	switch {
	case r.AgentRuntime == "":
		return windlassv1.Isolation_ISOLATION_UNSPECIFIED
	case slices.Contains(r.AgentFeatures, agentv1.Feature_FEATURE_INSTANCE_ISOLATION.String()),
		runtimes[r.AgentRuntime].isolates:
		return windlassv1.Isolation_ISOLATION_WORKSPACE
	default:
		return windlassv1.Isolation_ISOLATION_NONE
	}
}
