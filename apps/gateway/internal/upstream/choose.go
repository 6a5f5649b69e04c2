package upstream

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/apps/gateway/internal/orca"
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
)

// Lease is one request at one instance.
type Lease struct {
	DeploymentID string
	Version      int32
	// Pairing is how requests of the instance's version are paired. Nil: they are not paired. Alone is why this request
	// is not paired. If the request goes to a pair, Prefill is the lease on the instance that prefills for this one.
	// Prefill has its own End.
	Pairing *pairing.Policy
	Alone   pairing.Reason
	Prefill *Lease
	// BootstrapPort is set for leases that are a Prefill.
	BootstrapPort int
	instance      *instance
	health        *health.Policy // the view's, which must not be changed
	// observer gets the load and the outcome of the request. Nil: the strategy is not an Observer.
	observer balance.Observer
	trial    bool
	recorded atomic.Bool
	ended    atomic.Bool
	outcome  atomic.Int32 // balance.Outcome
}

// InstanceID returns the id of the instance.
func (l *Lease) InstanceID() string { return l.instance.ID }

// Address returns the "host:port" of the instance.
func (l *Lease) Address() string { return l.instance.Address }

// RecordOutcome records what the request's result says about the instance. It must be called when the first byte of
// the answer has come, or when it is clear that no answer comes.
func (l *Lease) RecordOutcome(outcome health.Outcome) {
	l.recorded.Store(true)
	l.instance.noteAnswered()
	if outcome != health.Success {
		l.outcome.Store(int32(balance.Failed))
	}
	l.instance.recordOutcome(outcome, *l.health)
}

// RecordStall records that an answer that had begun did not continue within limit. A client can request an answer
// with long pauses. So the stall counts only if the instance began no other answer for half of limit.
func (l *Lease) RecordStall(limit time.Duration) {
	since := l.instance.owing.Load()
	if since != 0 && l.instance.route.cfg.Now().UnixNano()-since >= int64(limit/2) {
		l.outcome.Store(int32(balance.Failed))
		l.instance.recordOutcome(health.Timeout, *l.health)
	}
}

// noteAnswered records that the instance began an answer, or that no client waits for an answer now.
func (i *instance) noteAnswered() {
	if i.owing.Load() != 0 {
		i.owing.Store(0)
	}
}

// Observed reports whether the strategy uses the outcomes of requests, and the load that instances report.
// Reported and Fared must be called only then.
func (l *Lease) Observed() bool { return l.observer != nil }

// Reported passes on the load that the instance reported with an answer, which may be a failure.
func (l *Lease) Reported(load orca.Load, failed bool) {
	l.observer.Reported(l.instance.Endpoint, l.instance.route.cfg.Now(), load, failed)
}

// Fared records the outcome of the answer. It must be called before End. An outcome that is Failed already stays
// Failed.
func (l *Lease) Fared(how balance.Outcome) {
	l.outcome.CompareAndSwap(int32(balance.Ignored), int32(how))
}

// End must be called after the last byte of the answer. Calls after the first do nothing. If the request was a trial
// without an outcome, because its client went away, another request may become the trial.
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
	if !l.recorded.Load() { // the client went away
		l.instance.noteAnswered()
		if l.trial {
			l.instance.cancelTrial()
		}
	}
	l.instance.route.queue.wakeFirst()
}

// refusal is the reason why no instance can take a request.
type refusal struct {
	reason Reason
	// again is when the refusal may change without an event. Zero: only an event changes it.
	again time.Time
}

// Want says which instance a request needs.
type Want struct {
	// Host is the request's host. A preview's host leads only to the preview's deployment.
	Host string
	// Affinity is the affinity key. Empty: none.
	Affinity string
	// Until is when the request stops waiting.
	Until time.Time
	// Held is whether the request waits while the app is at zero.
	Held bool
	// Request is the request, if it may go to a pair. Nil: it goes to one instance.
	Request *pairing.Request
	tried   []*instance
}

// Tried makes later choices avoid the lease's instance while other instances can take the request.
func (w *Want) Tried(l *Lease) { w.tried = append(w.tried, l.instance) }

// TryOther is Try for an instance that was not tried. It returns nil if no such instance can take the request now.
func (r *Route) TryOther(w *Want) *Lease {
	l, _ := r.Try(w)
	if l != nil && slices.Contains(w.tried, l.instance) {
		l.End()
		return nil
	}
	return l
}

// few is the number of targets and instances up to which choosing allocates no memory.
const few = 16

// chooseInstance returns a lease. If the lease is nil, the refusal says why.
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
		l, now := r.begin(v, t, candidates.instances[i], candidates.anyhow, at)
		if l != nil {
			if r.pairUp(v, t, l, w, candidates.without, at) {
				return l, refusal{}
			}
			l.End() // another request took the last instance that prefills for it
			now = r.now.Load()
		}
		if now == nil {
			return nil, refusal{reason: Removed}
		}
		v = now
	}
}

// begin begins a request at the instance and returns its lease. If the instance cannot take the request any more, it
// returns no lease and the view for another choice. That view is nil if the route was removed.
func (r *Route) begin(v *view, t *target, chosen *instance, anyhow bool, at time.Time) (*Lease, *view) {
	trial, ok := chosen.beginTrial(at)
	if !ok && !anyhow {
		return nil, v // another request began the trial first, so the instance gets no other request now
	}
	n := chosen.Begin()
	// The request is counted before the view is checked. So if an update swaps the view, and then finds no request
	// under way at an instance that left the view, no later request begins there.
	now := r.now.Load()
	if now != v || (v.policy.MaxInFlight > 0 && n > v.policy.MaxInFlight) {
		chosen.End()
		if trial {
			chosen.cancelTrial()
		}
		return nil, now
	}
	if chosen.owing.Load() == 0 {
		chosen.owing.CompareAndSwap(0, at.UnixNano())
	}
	if t.observer != nil {
		t.observer.Began(chosen.Endpoint, at)
	}
	return &Lease{DeploymentID: t.DeploymentID, Version: t.Version, instance: chosen, health: &v.policy.Health, observer: t.observer, trial: trial}, v
}

// set has the instances that can take a request.
type set struct {
	instances []*instance
	endpoints []*balance.Endpoint
	// anyhow is whether instances count even if they are ejected or not ready.
	anyhow bool
	// without is whether instances count that could only take the request as a pair, if there was one.
	without bool
}

// chooseCandidates chooses the deployment, and returns it with its instances that can take the request. It returns
// nil if no deployment has such an instance.
func (r *Route) chooseCandidates(v *view, w *Want, now time.Time) (*target, set, refusal) {
	t, s, why := r.chooseFrom(v, w, now, false)
	if t == nil && v.mayPair(w) && (why.reason == NoInstance || !v.hasPair(w, now)) {
		if t, s, _ := r.chooseFrom(v, w, now, true); t != nil {
			s.without = true
			return t, s, refusal{}
		}
	}
	return t, s, why
}

// chooseFrom is chooseCandidates. without is whether instances count that take the request without their partners.
func (r *Route) chooseFrom(v *view, w *Want, now time.Time, without bool) (*target, set, refusal) {
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
	// While a deployment has a ready instance, deployments without a ready instance leave their share to it.
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
		if weight > 0 && (ready && t.ready == 0 || t.countFor(v, w, now, nil, &why, without) == 0) {
			weight = 0
		}
		weights = append(weights, weight)
	}
	// A deployment may have no free instance any more when its turn comes. Then the next deployment is tried.
	for range v.targets {
		i := r.nextTarget(v, w, weights)
		if i < 0 {
			break
		}
		var s set
		if t := &v.targets[i]; t.countFor(v, w, now, &s, &why, without) > 0 {
			return t, s, refusal{}
		}
		weights[i] = 0
	}
	return nil, set{}, why
}

// nextTarget returns the index of the target that gets the request. If the strategy is affinity and the request has
// a key, it is the target of the key, because instances of other versions do not have the key's caches. Otherwise it
// is the next target in turn.
func (r *Route) nextTarget(v *view, w *Want, weights []int64) int {
	if w.Affinity != "" && v.policy.Strategy == balance.Affinity {
		return v.shares.Of(w.Affinity, weights)
	}
	return r.turns.Next(weights)
}

// countFor is countUsable, or countPairs if the request may go to a pair.
func (t *target) countFor(v *view, w *Want, now time.Time, s *set, why *refusal, without bool) int {
	if t.mayPair(w) {
		return t.countPairs(v, w, now, s, why, without)
	}
	return t.countUsable(v, w, now, s, why)
}

// countUsable counts the instances that can take the request, and adds them to s if s is not nil.
func (t *target) countUsable(v *view, w *Want, now time.Time, s *set, why *refusal) int {
	well := func(k int) bool {
		if k >= t.ready {
			return false
		}
		verdict, _ := t.known[k].verdictAt(now)
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
		verdict, until := i.verdictAt(now)
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
	// While all instances get requests, an attempt of a request may fail. A retry goes only to healthy instances, if one
	// can take it.
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
