package upstream

import "github.com/windlass-run/windlass/apps/gateway/internal/health"

// Arrival is an instance that has become ready, or that requests could not connect to, and is
// to be reached before anybody counts on it. Of its answers those are ignored that come when it
// is not ready any more, or has become so again.
type Arrival struct {
	// Address is "host:port".
	Address string

	instance *instance
	number   uint64
}

// arrive begins what ends with depart, or with Reached.
func (i *instance) arrive() Arrival {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.listed = true
	return i.doubt()
}

// lost has an instance reached anew that requests could not connect to.
func (i *instance) lost() {
	if i.route.cfg.Arrived == nil {
		return
	}
	i.mu.Lock()
	if !i.listed || i.unproven.Load() {
		i.mu.Unlock()
		return
	}
	a := i.doubt()
	i.mu.Unlock()
	i.route.cfg.Arrived(a)
}

func (i *instance) doubt() Arrival {
	i.arrivals++
	i.unproven.Store(true)
	i.route.talk.Add(1)
	i.unreached = ""
	return Arrival{Address: i.Address, instance: i, number: i.arrivals}
}

// depart has nobody try to reach it.
func (i *instance) depart() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.arrivals++
	i.listed = false
	i.unproven.Store(false)
	i.unreached = ""
}

// Wanted tells whether the answer still matters.
func (a Arrival) Wanted() bool {
	a.instance.mu.Lock()
	defer a.instance.mu.Unlock()
	return a.wanted()
}

func (a Arrival) wanted() bool { return a.instance.unproven.Load() && a.instance.arrivals == a.number }

// Reached tells that a connection was had.
func (a Arrival) Reached() {
	i := a.instance
	i.mu.Lock()
	if !a.wanted() {
		i.mu.Unlock()
		return
	}
	out := !i.passive.Until().IsZero() && i.reason == health.Refusal.String()
	i.unproven.Store(false)
	i.unreached = ""
	i.mu.Unlock()
	if out {
		i.reset() // what put it out is over
	}
	i.route.cfg.Proven()
}

// Unreached tells that none was had, which counts as a request's failure to would.
func (a Arrival) Unreached() {
	i := a.instance
	i.mu.Lock()
	if !a.wanted() {
		i.mu.Unlock()
		return
	}
	first := i.unreached == ""
	i.unreached = health.Refusal.String()
	i.mu.Unlock()
	i.told(health.Refusal, i.route.Policy().Health)
	if first {
		i.route.cfg.Proven()
	}
}
