package agent

import (
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/simulated"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Simulated is a runtime that runs nothing, for fleets in tests and simulators. It outlives the agents that
// use it.
type Simulated struct{ *simulated.Runtime }

// SimulatedConfig configures a Simulated runtime.
type SimulatedConfig struct {
	Region string
	// Start and Stop return how long instances take. Nil: no time.
	Start, Stop func() time.Duration
	// Crashes reports whether instances of a version with this label crash. Nil: never.
	Crashes func(versionLabel string) bool
	// Failures returns how many starts of a new instance fail before one succeeds. Nil: none. Three are a
	// crash loop.
	Failures func() int
	// CPU returns how many millicores the ready instances of an app's assigned deployments use together. They share
	// it evenly. ok is false if that is not known. Nil: it never is. It must not call the runtime.
	CPU func(app string) (millicores float64, ok bool)
	// Applied and Removed are called at once for every assignment that the runtime gets. Nil: they are not
	// called.
	Applied func(deploymentID string, epoch, generation int64)
	Removed func(deploymentID string)
	// Ready is called for every instance that becomes ready, before the agent can see it. Nil: it is not
	// called. It must not call the runtime.
	Ready func(deploymentID, instanceID string)
}

// Take gives the runtime to one agent and takes it from the one before, like a region's Lease. Calls of the
// agent before fail from then on.
func (s *Simulated) Take() Runtime { return s.Runtime.Take() }

// NewSimulated returns a runtime without instances.
func NewSimulated(cfg SimulatedConfig) *Simulated {
	failures := func(d *agentv1.Deployment) int {
		switch {
		case cfg.Crashes != nil && cfg.Crashes(d.GetSpec().GetVersionLabel()):
			return simulated.Doomed
		case cfg.Failures != nil:
			return cfg.Failures()
		}
		return 0
	}
	return &Simulated{simulated.New(simulated.Config{
		Region: cfg.Region, Start: cfg.Start, Stop: cfg.Stop, Failures: failures, CPU: cfg.CPU,
		Applied: cfg.Applied, Removed: cfg.Removed, Ready: cfg.Ready,
	})}
}
