package agent

import (
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/simulated"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Simulated is a runtime that starts no processes, for fleets in tests and simulators. It outlives
// the agents that use it.
type Simulated struct{ *simulated.Runtime }

// SimulatedConfig configures a Simulated runtime.
type SimulatedConfig struct {
	Region string
	// Start and Stop return how long an instance takes to start and to stop. Nil: no time.
	Start, Stop func() time.Duration
	// Crashes reports whether instances of versions with this label crash. Nil: none do.
	Crashes func(versionLabel string) bool
	// Failures returns how many starts of a new instance fail before one succeeds. Nil: none. Three
	// failures are a crash loop.
	Failures func() int
	// CPU returns how many millicores the ready instances of a role of an app's assigned deployments
	// use together. The role of an app without roles is "main". The instances share it evenly. ok is
	// false if the usage is not known. Nil: it is never known. CPU must not call the runtime.
	CPU func(app, role string) (millicores float64, ok bool)
	// Serve starts a server for an instance that becomes ready, and returns its address (host:port).
	// end is called once, with crashed if requests in flight must fail. Gateways can send requests
	// only to such instances. Nil: nothing listens. Neither may call the runtime.
	Serve func(app, instanceID string) (address string, end func(crashed bool))
	// Applied and Removed are called immediately for every assignment that the runtime gets. Nil:
	// no call.
	Applied func(deploymentID string, epoch, generation int64)
	Removed func(deploymentID string)
	// Ready is called for every instance that becomes ready, before the agent can see it. Nil: no
	// call. Ready must not call the runtime.
	Ready func(deploymentID, instanceID string)
}

// Take gives the runtime to one agent and takes it from the previous agent, like a region's Lease.
// From then on, calls of the previous agent fail.
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
		Region: cfg.Region, Start: cfg.Start, Stop: cfg.Stop, Failures: failures, CPU: cfg.CPU, Serve: cfg.Serve,
		Applied: cfg.Applied, Removed: cfg.Removed, Ready: cfg.Ready,
	})}
}
