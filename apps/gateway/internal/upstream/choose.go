package upstream

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/apps/gateway/internal/orca"
)

// Lease is one request at one instance.
type Lease struct {
	DeploymentID string
	Version      int32
	instance     *instance
	health       *health.Policy // the view's, which is not changed
	// observer is told how the request fares; nil: the strategy is no Observer.
	observer balance.Observer
	trial    bool
	recorded atomic.Bool
	ended    atomic.Bool
	outcome  atomic.Int32 // balance.Outcome
}

// InstanceID and Address of the instance.
func (l *Lease) InstanceID() string { return l.instance.ID }

// Address is "host:port".
func (l *Lease) Address() string { return l.instance.Address }

// RecordOutcome says how the request went, as far as it tells about the instance: once the first
// byte of the answer is there, or it is clear that none comes.
func (l *Lease) RecordOutcome(outcome health.Outcome) {
	l.recorded.Store(true)
	l.instance.noteAnswered()
	if outcome != health.Success {
		l.outcome.Store(int32(balance.Failed))
	}
	l.instance.recordOutcome(outcome, *l.health)
}

// RecordStall says that an answer which had begun did not go on within limit. Any client may ask for an answer
// that is silent for long, so it counts against the instance only if that begins no other answer either.
func (l *Lease) RecordStall(limit time.Duration) {
	since := l.instance.owing.Load()
	if since != 0 && l.instance.route.cfg.Now().UnixNano()-since >= int64(limit/2) {
		l.outcome.Store(int32(balance.Failed))
		l.instance.recordOutcome(health.Timeout, *l.health)
	}
}

// noteAnswered notes that the instance began an answer, or that no client waits for one any more.
func (i *instance) noteAnswered() {
	if i.owing.Load() != 0 {
		i.owing.Store(0)
	}
}

// Observed reports whether how the request fares matters to those that follow, and what the instance
// says of its load. Only then anybody has to call Reported and Fared.
func (l *Lease) Observed() bool { return l.observer != nil }

// Reported is what the instance says of its load with an answer, which may be a failure.
func (l *Lease) Reported(load orca.Load, failed bool) {
	l.observer.Reported(l.instance.Endpoint, l.instance.route.cfg.Now(), load, failed)
}

// Fared says what became of the answer, before End. An outcome that was recorded as failed stays so.
func (l *Lease) Fared(how balance.Outcome) {
	l.outcome.CompareAndSwap(int32(balance.Ignored), int32(how))
}

// End of the request, with its last byte. Calls after the first do nothing. A trial that
// ends without an outcome (its client went away) leaves the instance to another.
func (l *Lease) End() {
	if !l.ended.CompareAndSwap(false, true) {
		return
	}
	if l.observer != nil {
		l.observer.Ended(l.instance.Endpoint, l.instance.route.cfg.Now(), balance.Outcome(l.outcome.Load()))
	}
	if left := l.instance.End(); left == 0 && l.instance.leaving.Load() {
		l.instance.route.cfg.Drained(l.instance.ID)
	}
	if !l.recorded.Load() { // its client went away
		l.instance.noteAnswered()
		if l.trial {
			l.instance.cancelTrial()
		}
	}
	l.instance.route.queue.wakeFirst()
}

// refusal says why there is no instance.
type refusal struct {
	reason Reason
	// again is when that may change by itself; zero: only by an event.
	again time.Time
}

// Want is what the instance of a request is chosen by.
type Want struct {
	// Host that was asked for: a preview's leads to its deployment alone.
	Host string
	// Affinity is the key, or empty.
	Affinity string
	// Until is when it waits no longer.
	Until time.Time
	// Held: it waits while the app is at zero.
	Held  bool
	tried []*instance
}

// Tried makes later choices avoid the lease's instance, while there are others.
func (w *Want) Tried(l *Lease) { w.tried = append(w.tried, l.instance) }

// few is how many targets and instances are looked at without allocating.
const few = 16

// chooseInstance returns a lease, or why there is none.
func (r *Route) chooseInstance(v *view, w *Want, at time.Time) (*Lease, refusal) {
	for {
		if v.holdsRequest(w) {
			return nil, refusal{reason: Held}
		}
		t, candidates, why := r.chooseCandidates(v, w, at)
		if t == nil {
			return nil, why
		}
		i := 0
		req := balance.Request{Affinity: w.Affinity, Random: r.cfg.Random(), Now: at}
		if len(candidates.instances) > 1 {
			i = t.strategy.Pick(candidates.endpoints, req)
		}
		chosen := candidates.instances[i]
		trial, ok := chosen.beginTrial(at)
		if !ok && !candidates.anyhow {
			continue // another request was first to try it: it is out now
		}
		n := chosen.Begin()
		// Counted first, looked at after: who swapped the view and then finds nothing under
		// way at an instance that left it can rely on that.
		now := r.now.Load()
		if now != v || (v.policy.MaxInFlight > 0 && n > v.policy.MaxInFlight) {
			chosen.End()
			if trial {
				chosen.cancelTrial()
			}
			if now == nil {
				return nil, refusal{reason: Removed}
			}
			v = now
			continue
		}
		if chosen.owing.Load() == 0 {
			chosen.owing.CompareAndSwap(0, at.UnixNano())
		}
		if t.observer != nil {
			t.observer.Began(chosen.Endpoint, at)
		}
		return &Lease{DeploymentID: t.DeploymentID, Version: t.Version, instance: chosen, health: &v.policy.Health, observer: t.observer, trial: trial}, refusal{}
	}
}

// set of instances that can take a request.
type set struct {
	instances []*instance
	endpoints []*balance.Endpoint
	// anyhow: whatever traffic found about them.
	anyhow bool
}

// chooseCandidates chooses the deployment and returns it with those of its instances that can
// take the request; nil if no deployment has one.
func (r *Route) chooseCandidates(v *view, w *Want, now time.Time) (*target, set, refusal) {
	why := refusal{reason: NoInstance}
	preview := v.hosts[w.Host]
	weightOf := func(t *target) int64 {
		switch preview {
		case "":
			return int64(t.Weight)
		case t.DeploymentID:
			return 1
		default:
			return 0
		}
	}
	// While one of any is ready, those without leave their share to the others.
	ready := false
	for i := range v.targets {
		t := &v.targets[i]
		ready = ready || t.ready > 0 && weightOf(t) > 0
	}
	var weightArray [few]int64
	weights := weightArray[:0]
	for i := range v.targets {
		t := &v.targets[i]
		weight := weightOf(t)
		if weight > 0 && (ready && t.ready == 0 || t.countUsable(v, w, now, nil, &why) == 0) {
			weight = 0
		}
		weights = append(weights, weight)
	}
	// Where the one that has the turn has none left by now, another has.
	for range v.targets {
		i := r.nextTarget(v, w, weights)
		if i < 0 {
			break
		}
		var s set
		if t := &v.targets[i]; t.countUsable(v, w, now, &s, &why) > 0 {
			return t, s, refusal{}
		}
		weights[i] = 0
	}
	return nil, set{}, why
}

// nextTarget returns the target that gets the request. It is the one that has the request's key, where keys
// have instances of their own, because another version does not find their caches. Otherwise it is the next
// in turn.
func (r *Route) nextTarget(v *view, w *Want, weights []int64) int {
	if w.Affinity != "" && v.policy.Strategy == balance.Affinity {
		return v.shares.Of(w.Affinity, weights)
	}
	return r.turns.Next(weights)
}

// countUsable counts the instances that can take the request and puts them into s, if that
// is not nil.
func (t *target) countUsable(v *view, w *Want, now time.Time, s *set, why *refusal) int {
	well := func(k int) bool {
		if k >= t.ready {
			return false
		}
		verdict, _ := t.known[k].verdict(now)
		return verdict != health.Out
	}
	left := 0
	for k := range t.ready {
		if well(k) {
			left++
		}
	}
	from := t.known[:t.ready]
	anyhow := left*100 < len(t.known)*v.policy.Panic
	if anyhow {
		from = t.known
	}
	takes := func(i *instance) bool {
		verdict, until := i.verdict(now)
		switch {
		case slices.Contains(w.tried, i):
		case !anyhow && verdict == health.Out:
			if why.again.IsZero() || until.Before(why.again) {
				why.again = until
			}
		case v.policy.MaxInFlight > 0 && i.InFlight() >= v.policy.MaxInFlight:
			why.reason = AtLimit
		default:
			return true
		}
		return false
	}
	n, sound := 0, 0
	for k, i := range from {
		if takes(i) {
			n++
			if anyhow && well(k) {
				sound++
			}
		}
	}
	if s == nil || n == 0 {
		return n
	}
	s.anyhow = anyhow
	// One attempt in vain is what sending to all may cost a request, and no more.
	safely := len(w.tried) > 0 && sound > 0
	if n == len(from) && !safely {
		s.instances, s.endpoints = from, t.endpoints[:n]
		return n
	}
	for k, i := range from {
		if takes(i) && (!safely || well(k)) {
			s.instances, s.endpoints = append(s.instances, i), append(s.endpoints, i.Endpoint)
		}
	}
	return len(s.instances)
}
