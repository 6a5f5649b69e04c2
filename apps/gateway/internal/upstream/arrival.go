package upstream

import (
	"strings"

	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/pkg/healthcheck"
)

// Arrival is an instance that has become ready, or to which requests could not connect. Until an attempt
// reaches it, it is unproven. The result of an attempt is ignored if the instance has ceased to be ready
// or has become ready again in the meantime.
type Arrival struct {
	// Address is "host:port".
	Address string

	instance *instance
	number   uint64
}

// beginArrival begins the attempts to reach the instance. endArrival or Reached ends them.
func (i *instance) beginArrival() Arrival {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.listed = true
	return i.doubtArrival()
}

// reachAnew makes the gateway reach an instance again, because requests could not connect to it.
func (i *instance) reachAnew() {
	if i.route.cfg.Arrived == nil {
		return
	}
	i.mu.Lock()
	if !i.listed || i.unproven.Load() {
		i.mu.Unlock()
		return
	}
	a := i.doubtArrival()
	i.mu.Unlock()
	i.route.cfg.Arrived(a)
}

func (i *instance) doubtArrival() Arrival {
	i.arrivals++
	i.unproven.Store(true)
	i.route.talk.Add(1)
	i.unreached = ""
	return Arrival{Address: i.Address, instance: i, number: i.arrivals}
}

// endArrival ends the attempts to reach the instance.
func (i *instance) endArrival() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.arrivals++
	i.listed = false
	i.unproven.Store(false)
	i.unreached = ""
}

// Wanted reports whether the result still matters.
func (a Arrival) Wanted() bool {
	a.instance.mu.Lock()
	defer a.instance.mu.Unlock()
	return a.isWanted()
}

func (a Arrival) isWanted() bool {
	return a.instance.unproven.Load() && a.instance.arrivals == a.number
}

// Check returns the check that the instance must pass. Nil: a connection is enough.
func (a Arrival) Check() *healthcheck.Check { return a.instance.check.Load() }

// Reached records that an attempt connected to the instance, and that the instance passed its check.
func (a Arrival) Reached() {
	i := a.instance
	i.mu.Lock()
	if !a.isWanted() {
		i.mu.Unlock()
		return
	}
	out := !i.passive.Until().IsZero() && (i.reason == health.Refusal.String() || i.unreached != "")
	i.unproven.Store(false)
	i.unreached = ""
	i.mu.Unlock()
	if out {
		i.resetFindings() // the cause of the ejection is over
	}
	i.route.cfg.Proven()
}

// Unreached records that an attempt could not connect. That counts like a request that could not connect.
func (a Arrival) Unreached() { a.noteMissed(health.Refusal, health.Refusal.String()) }

// longestWhy is the longest reason that the agent accepts, in bytes.
const longestWhy = 128

// Failed records why the check failed. That counts like an answer of 5xx to a request.
func (a Arrival) Failed(why string) {
	a.noteMissed(health.Failure, strings.ToValidUTF8(why[:min(len(why), longestWhy)], ""))
}

func (a Arrival) noteMissed(outcome health.Outcome, why string) {
	i := a.instance
	i.mu.Lock()
	if !a.isWanted() {
		i.mu.Unlock()
		return
	}
	news := i.unreached != why
	i.unreached = why
	i.mu.Unlock()
	i.recordOutcome(outcome, i.route.Policy().Health)
	if news {
		i.route.cfg.Proven()
	}
}
