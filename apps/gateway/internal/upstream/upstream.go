// Package upstream holds the state of an app's route: the deployments with their weights, the instances with their
// health, the requests under way at each instance, and the requests that wait.
//
//	Route   stays the same when its spec changes, and keeps turns, health, requests under way and the queue
//	view    is one immutable version of hosts, targets and instances; an update replaces it for all requests at once
//	Lease   is one request at one instance; it counts as under way until its end
//
// If a deployment has pairs, a request for a completion gets a lease on an instance that decodes, and with it one on an
// instance that prefills (Lease.Prefill).
//
// A request gets an instance in two steps. First the deployment is chosen by weight, in turn or by the request's
// affinity key, among the deployments with an instance that can take the request. Then the route's strategy chooses
// the instance. If no instance can take the request, it waits, first come, first served.
//
// Which instances can take a request:
//
//   - Instances that drain or were never ready get no requests.
//   - Instances that are not ready any more, or that traffic ejected, get no requests until their check or a trial
//     succeeds.
//   - If the rule above left too few instances (see Policy.Panic), all instances that are or were ready get requests.
//     They may be healthier than they seem, and all requests together might overload the few. A retry still goes to
//     a healthy instance.
//   - A deployment without a ready instance leaves its share to the other deployments while one of them has a ready
//     instance.
package upstream

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
	"github.com/windlass-run/windlass/pkg/healthcheck"
)

// Ejection is the event that traffic ejects an instance, or takes it back in.
type Ejection struct {
	InstanceID string
	Ejected    bool
	// Reason is "ConnectError", "ServerErrors" or "Timeout". It is empty when the instance is back.
	Reason string
	// Until is when the instance is tried again.
	Until time.Time
}

// Config configures a Route.
type Config struct {
	// Now is the clock.
	Now func() time.Time
	// Random returns a random number. It must be safe for concurrent use.
	Random func() uint64
	// Ejected is called for every ejection and return, and Drained at the end of the last request of an
	// instance that drains or is not listed any more. Both must not block.
	Ejected func(Ejection)
	Drained func(instanceID string)
	// Arrived is called with every instance that has become ready, or was ejected because requests could not
	// connect to it. Proven is called when an attempt reached such an instance, or failed for a new reason. Both
	// must not block. If Arrived is nil, all instances count as reached.
	Arrived func(Arrival)
	Proven  func()
}

// Route is the route of one app. It is safe for concurrent use.
type Route struct {
	cfg   Config
	turns balance.Turns
	now   atomic.Pointer[view]
	// last is the view of a route that was removed, because requests may be under way.
	last  atomic.Pointer[view]
	queue queue
	// talk is incremented each time the health of an instance changes.
	talk atomic.Uint64
	// misses are the last requests that found no server with their model.
	misses misses
}

// instance outlives the views that it is in.
type instance struct {
	*balance.Endpoint
	route *Route
	// touched is whether passive is not the zero value. Without it, a success needs no lock.
	touched atomic.Bool
	// leaving is whether the instance drains or is no longer listed. Then Drained is called at the end of its last
	// request.
	leaving atomic.Bool
	// owing is when the first request came after the instance last began an answer, in Unix nanoseconds. 0: no
	// request came.
	owing atomic.Int64
	// unproven is whether the instance is ready but was not reached yet. check is the check that it must pass. Nil:
	// none.
	unproven atomic.Bool
	check    atomic.Pointer[healthcheck.Check]
	mu       sync.Mutex
	passive  health.State
	reason   string
	// listed is whether the instance is listed as ready. arrivals counts how often it became ready, ceased to be
	// ready, or became unproven because requests could not connect. unreached is why the last attempt failed.
	listed    bool
	arrivals  uint64
	unreached string
}

// view is immutable, except for quiet.
type view struct {
	Spec

	// hosts has the id of the deployment to which a host leads. Empty: weights choose the deployment.
	hosts   map[string]string
	targets []target
	shares  balance.Shares // of targets
	policy  Policy
	// gone are instances that had requests under way when they were no longer listed.
	gone []*instance
	// quiet is one more than the value of Route.talk at which no listed instance had anything to report.
	quiet atomic.Uint64
}

type target struct {
	TargetSpec

	strategy balance.Strategy
	observer balance.Observer // strategy, if it is one
	// known are first the instances that are ready, and then the instances that were ready before. ready is the
	// number of the first ones.
	known []*instance
	ready int
	// endpoints are the endpoints of known, in the same order. The strategy gets them if all instances can take the
	// request.
	endpoints []*balance.Endpoint
	all       map[string]member
	// prefill has the instances that prefill prompts for the instances of this target. Nil: requests do not go to pairs.
	prefill *target
	// keys are the pairing keys of known, in the same order, as indexes of policies. alone is whether an instance of
	// known takes requests as they come, in the same order.
	keys  [][]int
	alone []bool
	// policies are how requests go to the pairs of the keys. The prefill of a target has none.
	policies []*pairing.Policy
	// prefills is whether the target is the prefill of another target.
	prefills bool
}

// strategyKey identifies the target's strategy among the strategies of the route.
func (t *target) strategyKey() string {
	if t.prefills {
		return t.DeploymentID + "/prefill"
	}
	return t.DeploymentID
}

// eachTarget returns all targets of the view, each followed by its prefill, if it has one.
func (v *view) eachTarget() iter.Seq[*target] {
	return func(yield func(*target) bool) {
		for i := range v.targets {
			t := &v.targets[i]
			if !yield(t) || t.prefill != nil && !yield(t.prefill) {
				return
			}
		}
	}
}

type member struct {
	*instance

	state    State
	wasReady bool
}

// New returns a route without hosts and targets.
func New(cfg Config) *Route {
	r := &Route{cfg: cfg}
	r.turns.Begin(cfg.Random())
	return r
}

// Spec returns a copy of the route's spec. ok is false if the route was removed.
func (r *Route) Spec() (_ Spec, ok bool) {
	v := r.now.Load()
	if v == nil {
		return Spec{}, false
	}
	return v.Spec, true
}

// Now returns the route's spec, which must not be changed. It returns nil if the route was removed.
func (r *Route) Now() *Spec {
	if v := r.now.Load(); v != nil {
		return &v.Spec
	}
	return nil
}

// Serves reports whether the host is one of the route's.
func (r *Route) Serves(host string) bool {
	v := r.now.Load()
	if v == nil {
		return false
	}
	_, ok := v.hosts[host]
	return ok
}

// Policy returns the policy of the route, or the default policy if the route was removed.
func (r *Route) Policy() Policy {
	if v := r.now.Load(); v != nil {
		return v.policy
	}
	return DefaultPolicy()
}

// Remove removes all hosts and targets. Requests that wait are refused, and requests under way continue.
func (r *Route) Remove() {
	before := r.now.Load()
	if before != nil {
		for _, i := range before.leftBy(&view{}) {
			i.leaving.Store(true)
			i.endArrival()
		}
	}
	r.last.Store(before)
	r.now.Store(nil)
	r.queue.wakeAll()
}

// Update sets the route's spec for all later choices. It must not be called concurrently.
func (r *Route) Update(spec Spec) error {
	before := r.now.Load()
	after := &view{Spec: spec, policy: spec.Policy, hosts: make(map[string]string, len(spec.Hosts)+len(spec.Previews))}
	for _, p := range spec.Previews {
		after.hosts[p.Host] = p.DeploymentID
	}
	for _, h := range spec.Hosts {
		after.hosts[h] = ""
	}
	known := map[string]member{}
	strategies := map[string]balance.Strategy{}
	var arrived []Arrival
	ids := make([]string, 0, len(spec.Targets))
	if before != nil {
		for t := range before.eachTarget() {
			maps.Copy(known, t.all)
			if before.policy.Strategy == spec.Policy.Strategy {
				strategies[t.strategyKey()] = t.strategy
			}
		}
	}
	// newTarget returns the target with the instances of one role.
	newTarget := func(ts TargetSpec, prefills bool) (target, error) {
		t := target{TargetSpec: ts, all: make(map[string]member, len(ts.Instances)), prefills: prefills}
		if t.strategy = strategies[t.strategyKey()]; t.strategy == nil {
			var err error
			if t.strategy, err = balance.New(spec.Policy.Strategy); err != nil {
				return target{}, fmt.Errorf("routes of %s: %w", spec.AppID, err)
			}
		}
		t.observer, _ = t.strategy.(balance.Observer)
		var lapsed []*instance
		for _, is := range ts.Instances {
			m := known[is.ID]
			if m.instance == nil || m.Address != is.Address {
				m = member{instance: &instance{Endpoint: balance.NewEndpoint(is.ID, is.Address), route: r}}
			}
			if !is.OtherVersion {
				m.check.Store(is.Check)
			}
			switch is.State {
			case m.state: // no change; a new instance begins as NotReady
			case Ready:
				m.instance.resetFindings()
				if r.cfg.Arrived != nil {
					arrived = append(arrived, m.instance.beginArrival())
				}
			default:
				m.instance.endArrival()
			}
			m.state = is.State
			m.leaving.Store(is.State == Draining)
			m.wasReady = m.wasReady || is.State == Ready
			if is.WasReady != nil {
				m.wasReady = *is.WasReady
			}
			known[is.ID] = m
			t.all[is.ID] = m
			switch {
			case m.state == Ready:
				t.known = append(t.known, m.instance)
			case m.state == NotReady && m.wasReady:
				lapsed = append(lapsed, m.instance)
			}
		}
		t.ready = len(t.known)
		t.known = append(t.known, lapsed...)
		for _, i := range t.known {
			t.endpoints = append(t.endpoints, i.Endpoint)
		}
		return t, nil
	}
	for _, ts := range spec.Targets {
		t, err := newTarget(ts, false)
		if err == nil && ts.Pairing != nil {
			prefill := ts
			prefill.Instances = ts.Prefill
			var p target
			p, err = newTarget(prefill, true)
			t.prefill = &p
			t.numberKeys()
		}
		if err != nil {
			return err
		}
		after.targets = append(after.targets, t)
		ids = append(ids, t.DeploymentID)
	}
	after.shares = balance.NewShares(ids)
	after.gone = before.leftBy(after)
	for _, i := range after.gone {
		i.leaving.Store(true)
		i.endArrival()
	}
	r.now.Store(after)
	r.queue.wakeAll()
	for _, a := range arrived {
		r.cfg.Arrived(a)
	}
	return nil
}

// leftBy returns the instances that next does not list, if they have requests under way or may get a request from a
// choice that still uses v. These requests continue.
func (v *view) leftBy(next *view) []*instance {
	if v == nil {
		return nil
	}
	listed := map[*instance]bool{}
	for t := range next.eachTarget() {
		for _, m := range t.all {
			listed[m.instance] = true
		}
	}
	var gone []*instance
	for _, i := range v.gone {
		if i.InFlight() > 0 && !listed[i] {
			gone = append(gone, i)
		}
	}
	for t := range v.eachTarget() {
		for _, m := range t.all {
			if !listed[m.instance] {
				listed[m.instance] = true
				gone = append(gone, m.instance)
			}
		}
	}
	return gone
}

// Health is what the gateway reports about an instance.
type Health struct {
	InstanceID string
	// Ejected is whether traffic ejected it. Reason is why, as in Ejection.
	Ejected bool
	Reason  string
	// Unproven is whether no attempt has reached the instance since it became ready. Then Reason is why the last
	// attempt failed, unless requests could not connect to the instance.
	Unproven bool
	// InFlight is set only for instances that drain or are no longer listed.
	InFlight int64
}

// Health returns the health of instances that are ejected or unproven. It also has the instances with requests under
// way that drain or are not listed any more. It is sorted by id.
func (r *Route) Health() []Health {
	v := r.now.Load()
	if v == nil {
		v = r.last.Load()
	}
	if v == nil {
		return nil
	}
	removed := r.now.Load() == nil
	if !removed && len(v.gone) == 0 {
		// talk is read before mayHaveNews, so that the next call finds a change during mayHaveNews.
		talk := r.talk.Load() + 1
		if v.quiet.Load() == talk {
			return nil
		}
		if !v.mayHaveNews() {
			v.quiet.Store(talk)
			return nil
		}
	}
	// An id comes twice if its address changed, because the old process may still have requests.
	sums := map[string]Health{}
	seen := map[*instance]bool{}
	add := func(i *instance, leaving bool) {
		if seen[i] {
			return
		}
		seen[i] = true
		h := sums[i.ID]
		h.InstanceID = i.ID
		i.mu.Lock()
		if !leaving {
			h.Unproven, h.Ejected = i.unproven.Load(), !i.passive.Until().IsZero()
			// The reason why the instance fails its check says more than the reason of the ejection that followed.
			if h.Reason = i.unreached; h.Ejected && (i.unreached == "" || i.reason == health.Refusal.String()) {
				h.Reason = i.reason
			}
		}
		i.mu.Unlock()
		if leaving {
			h.InFlight += i.InFlight()
		}
		if h.Ejected || h.Unproven || h.InFlight > 0 {
			sums[i.ID] = h
		}
	}
	for t := range v.eachTarget() {
		for _, m := range t.all {
			add(m.instance, removed || m.state == Draining)
		}
	}
	for _, i := range v.gone {
		add(i, true)
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b Health) int { return strings.Compare(a.InstanceID, b.InstanceID) })
}

// mayHaveNews reports whether there may be anything to report about a listed instance. It is fast, because usually
// tens of thousands of instances have nothing to report.
func (v *view) mayHaveNews() bool {
	for t := range v.eachTarget() {
		for _, m := range t.all {
			if m.state == Draining || m.touched.Load() || m.unproven.Load() {
				return true
			}
		}
	}
	return false
}

func (i *instance) verdictAt(now time.Time) (health.Verdict, time.Time) {
	if !i.touched.Load() {
		return health.In, time.Time{}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.passive.Verdict(now), i.passive.Until()
}

// resetFindings clears the measured work and the passive health of the instance, because it has recovered.
func (i *instance) resetFindings() {
	i.mu.Lock()
	was := !i.passive.Until().IsZero()
	i.passive = health.State{}
	i.touched.Store(false)
	i.mu.Unlock()
	i.Forget()
	if was {
		i.route.cfg.Ejected(Ejection{InstanceID: i.ID})
	}
}

// beginTrial begins the trial of an instance if a trial is due. trial reports whether this request is the trial, and
// ok reports whether the request may go to the instance.
func (i *instance) beginTrial(now time.Time) (trial, ok bool) {
	if !i.touched.Load() {
		return false, true
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch i.passive.Verdict(now) {
	case health.In:
		return false, true
	case health.Trial:
		i.passive = i.passive.Try(now)
		return true, true
	case health.Out:
		return false, false
	}
	return false, false
}

func (i *instance) cancelTrial() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.passive = i.passive.Cancelled()
}

func (i *instance) recordOutcome(outcome health.Outcome, p health.Policy) {
	if outcome == health.Success && !i.touched.Load() {
		return
	}
	i.mu.Lock()
	was := !i.passive.Until().IsZero()
	next, ejected := i.passive.After(outcome, i.route.cfg.Now(), p)
	i.passive = next
	if next != (health.State{}) {
		i.touched.Store(true)
		i.route.talk.Add(1)
	} else {
		i.touched.Store(false)
	}
	back := was && next.Until().IsZero()
	switch {
	case ejected:
		i.reason = outcome.String()
	case back:
		i.reason = ""
	}
	i.mu.Unlock()
	switch {
	case ejected:
		i.route.cfg.Ejected(Ejection{InstanceID: i.ID, Ejected: true, Reason: outcome.String(), Until: next.Until()})
		if outcome == health.Refusal {
			i.reachAnew()
		}
	case back:
		i.route.cfg.Ejected(Ejection{InstanceID: i.ID})
		i.route.queue.wakeFirst()
	}
}
