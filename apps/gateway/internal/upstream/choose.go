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
	health       *health.Policy // the view's, which must not be changed
	// observer gets the load and the outcome of the request. Nil: the strategy is no Observer.
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

// RecordOutcome records what the request's result says about the instance. Call it once the first byte of the
// answer is there, or it is clear that none comes.
func (l *Lease) RecordOutcome(outcome health.Outcome) {
	l.recorded.Store(true)
	l.instance.noteAnswered()
	if outcome != health.Success {
		l.outcome.Store(int32(balance.Failed))
	}
	l.instance.recordOutcome(outcome, *l.health)
}

// RecordStall records that an answer which had begun did not go on within limit. A client may ask for an
// answer that is silent for long. So it counts only if the instance begins no other answer either.
func (l *Lease) RecordStall(limit time.Duration) {
	since := l.instance.owing.Load()
	if since != 0 && l.instance.route.cfg.Now().UnixNano()-since >= int64(limit/2) {
		l.outcome.Store(int32(balance.Failed))
		l.instance.recordOutcome(health.Timeout, *l.health)
	}
}

// noteAnswered notes that the instance began an answer, or that no client waits for one now.
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

// Fared records the outcome of the answer, before End. An outcome that was recorded as failed stays so.
func (l *Lease) Fared(how balance.Outcome) {
	l.outcome.CompareAndSwap(int32(balance.Ignored), int32(how))
}

// End ends the request, with its last byte. Calls after the first do nothing. After a trial without an
// outcome, because its client went away, another request may be the trial.
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

// refusal is the reason why there is no instance.
type refusal struct {
	reason Reason
	// again is when that may change without an event. Zero: only an event changes it.
	again time.Time
}

// Want is what a request asks of an instance.
type Want struct {
	// Host is the host that was asked for. A preview's host leads to its deployment alone.
	Host string
	// Affinity is the key, or empty.
	Affinity string
	// Until is when the request stops waiting.
	Until time.Time
	// Held is whether the request waits while the app is at zero.
	Held  bool
	tried []*instance
}

// Tried makes later choices avoid the lease's instance, while there are others.
func (w *Want) Tried(l *Lease) { w.tried = append(w.tried, l.instance) }

// few is the number of targets and instances up to which choosing allocates no memory.
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
			continue // another request began the trial first, so that the instance is out now
		}
		n := chosen.Begin()
		// The request is counted before the view is checked. So an update that swaps the view, and then finds
		// no request under way at an instance that left it, can rely on that.
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

// set is the instances that can take a request.
type set struct {
	instances []*instance
	endpoints []*balance.Endpoint
	// anyhow is whether instances count regardless of what traffic found about them.
	anyhow bool
}

// chooseCandidates chooses the deployment and returns it with those of its instances that can take the
// request. It returns nil if no deployment has one.
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
	// While an instance of any deployment is ready, deployments without one leave their share to the others.
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
	// If the deployment whose turn it is has no instance left by now, the next one is tried.
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

// nextTarget returns the target that gets the request. If the strategy is affinity and the request has a key,
// that is the target of the key, because another version does not find the key's caches. Otherwise it is the
// next in turn.
func (r *Route) nextTarget(v *view, w *Want, weights []int64) int {
	if w.Affinity != "" && v.policy.Strategy == balance.Affinity {
		return v.shares.Of(w.Affinity, weights)
	}
	return r.turns.Next(weights)
}

// countUsable counts the instances that can take the request, and adds them to s if s is not nil.
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
	// Sending to all may cost a request one attempt in vain, and no more.
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
