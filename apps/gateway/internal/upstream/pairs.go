package upstream

import (
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
)

// A request that goes to a pair gets both instances in one choice. First the route finds the instances that prefill and
// can take the request. An instance that decodes counts only if it has a pairing key in common with one of them. The
// route chooses the instance that decodes as it does without pairs. Then it chooses the instance that prefills, among
// those that have a key in common with the first. So both instances of a request have a key in common, whatever happens
// between the two choices.
//
// Each pairing key has the policy of its version, because a version may take over instances of another one that pairs
// them in another way, or not at all. While no target has a pair for a request, decode servers of vLLM take it alone,
// because they can prefill a prompt themselves.

// numberKeys numbers the pairing keys of the target's instances and of those in its prefill.
func (t *target) numberKeys() {
	numbers := map[string]int{}
	for _, one := range []*target{t, t.prefill} {
		keys, alone := map[string][]string{}, map[string]bool{}
		for _, is := range one.Instances {
			keys[is.ID], alone[is.ID] = is.Keys, is.Alone
		}
		for _, i := range one.known {
			var own []int
			for _, key := range keys[i.ID] {
				n, ok := numbers[key]
				if !ok {
					n = len(numbers)
					numbers[key] = n
					t.policies = append(t.policies, t.policyOf(key))
				}
				own = append(own, n)
			}
			one.keys = append(one.keys, own)
			one.alone = append(one.alone, alone[i.ID])
		}
	}
}

// policyOf returns how requests go to the pairs of a key.
func (t *target) policyOf(key string) *pairing.Policy {
	if own := t.KeyPairings[key]; own != nil {
		return own
	}
	return t.Pairing
}

// mayPair reports whether the request may go to a pair of the target. Other requests go to any of its instances.
func (t *target) mayPair(w *Want) bool {
	return t.prefill != nil && w.Request != nil && w.Request.Unfit != pairing.Path
}

// mayPair reports whether the request may go to a pair of some target.
func (v *view) mayPair(w *Want) bool {
	for i := range v.targets {
		if v.targets[i].mayPair(w) {
			return true
		}
	}
	return false
}

// hasPair reports whether a target of the request's host has a pair in service, which may be at its limit of requests.
func (v *view) hasPair(w *Want, now time.Time) bool {
	preview := v.hosts[w.Host]
	for i := range v.targets {
		t := &v.targets[i]
		if t.prefill == nil || preview == "" && t.Weight == 0 || preview != "" && preview != t.DeploymentID {
			continue
		}
		for k, decodes := range t.known[:t.ready] {
			if decodes.isSound(now) && t.hasSoundPartner(k, now) {
				return true
			}
		}
	}
	return false
}

// way is how a request goes to an instance that decodes.
type way struct {
	// policy is nil if the instance gets the request as it came. alone is why the request goes to the instance alone.
	policy *pairing.Policy
	alone  pairing.Reason
	// keys are the pairing keys of which the request needs an instance that prefills. Empty: it needs none.
	keys []int
}

// wayTo returns how the request goes to the k-th known instance. partners has, by number of a pairing key, whether an
// instance that prefills can take the request. without is whether no target has a pair for the request. It returns
// false if the instance cannot take the request.
func (t *target) wayTo(k int, w *Want, partners []bool, without bool) (way, bool) {
	var pair way
	for _, n := range t.keys[k] {
		if partners[n] && t.policies[n].WhyAlone(w.Request) == "" {
			pair.keys = append(pair.keys, n)
		}
	}
	if len(pair.keys) > 0 {
		return pair, true
	}
	if t.alone[k] {
		return way{}, true
	}
	for _, n := range t.keys[k] {
		if why := t.policies[n].WhyAlone(w.Request); why != "" {
			return way{policy: t.policies[n], alone: why}, true
		}
	}
	if len(t.keys[k]) == 0 {
		why := t.Pairing.WhyAlone(w.Request)
		return way{policy: t.Pairing, alone: why}, why != ""
	}
	if without {
		for _, n := range t.keys[k] {
			if t.policies[n].Engine == pairing.NIXL {
				return way{policy: t.policies[n], alone: pairing.NoPair}, true
			}
		}
	}
	return way{}, false
}

// partnersIn returns which pairing keys the instances of s have, by number. Their order is that of known. t is the
// prefill of a target with count keys.
func (t *target) partnersIn(s *set, count int) []bool {
	out := make([]bool, count)
	k := 0
	for _, i := range s.instances {
		k += slices.Index(t.known[k:], i)
		for _, n := range t.keys[k] {
			out[n] = true
		}
	}
	return out
}

// keepOnly removes the instances from s that do not fit. Their order is that of known.
func (t *target) keepOnly(s *set, fits func(k int) bool) {
	var left set
	left.anyhow = s.anyhow
	k := 0
	for n, i := range s.instances {
		k += slices.Index(t.known[k:], i)
		if fits(k) {
			left.instances, left.endpoints = append(left.instances, i), append(left.endpoints, s.endpoints[n])
		}
	}
	*s = left
}

// countPairs is countUsable for a request that may go to a pair. It counts the instances that decode and can take the
// request in some way. With without, instances count that can take it alone, and whose partners are all out of service.
func (t *target) countPairs(v *view, w *Want, now time.Time, s *set, why *refusal, without bool) int {
	var prefills, decodes set
	if t.countUsable(v, w, now, &decodes, why) == 0 {
		return 0
	}
	partners := make([]bool, len(t.policies))
	if t.needsPartners(w) && t.prefill.countUsable(v, w, now, &prefills, why) > 0 {
		partners = t.prefill.partnersIn(&prefills, len(t.policies))
	}
	t.keepOnly(&decodes, func(k int) bool {
		_, ok := t.wayTo(k, w, partners, without && !t.hasSoundPartner(k, now))
		return ok
	})
	if s != nil {
		*s = decodes
	}
	return len(decodes.instances)
}

// needsPartners reports whether the request goes to a pair by the policy of some version.
func (t *target) needsPartners(w *Want) bool {
	return slices.ContainsFunc(t.policies, func(p *pairing.Policy) bool { return p.WhyAlone(w.Request) == "" })
}

// hasSoundPartner reports whether an instance that prefills for the k-th known instance is ready, not ejected, and was
// reached by the last attempt. Such an instance can take a request again soon.
func (t *target) hasSoundPartner(k int, now time.Time) bool {
	for n, i := range t.prefill.known[:t.prefill.ready] {
		if slices.ContainsFunc(t.prefill.keys[n], func(key int) bool { return slices.Contains(t.keys[k], key) }) && i.isSound(now) {
			return true
		}
	}
	return false
}

// isSound reports whether the instance is not ejected, and the last attempt could connect to it.
func (i *instance) isSound(now time.Time) bool {
	if !i.touched.Load() {
		return true
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.passive.Verdict(now) == health.In && !i.passive.Refuses()
}

// pairUp makes a lease on an instance that decodes into one for the request: it says in which way the request goes
// there, and has the lease on the instance that prefills. It returns false if no instance can prefill any more.
func (r *Route) pairUp(v *view, t *target, l *Lease, w *Want, without bool, at time.Time) bool {
	l.Pairing = t.Pairing
	if !t.mayPair(w) {
		if t.prefill != nil {
			l.Alone = pairing.Path
		}
		return true
	}
	var s set
	var why refusal
	partners := make([]bool, len(t.policies))
	if t.needsPartners(w) && t.prefill.countUsable(v, w, at, &s, &why) > 0 {
		partners = t.prefill.partnersIn(&s, len(t.policies))
	}
	how, ok := t.wayTo(slices.Index(t.known, l.instance), w, partners, without)
	if l.Pairing, l.Alone = how.policy, how.alone; !ok || len(how.keys) == 0 {
		return ok
	}
	inCommon := func(k int) int {
		return slices.IndexFunc(how.keys, func(n int) bool { return slices.Contains(t.prefill.keys[k], n) })
	}
	t.prefill.keepOnly(&s, func(k int) bool { return inCommon(k) >= 0 })
	i := 0
	if len(s.instances) > 1 {
		i = t.prefill.strategy.Pick(s.endpoints, balance.Request{Affinity: w.Affinity, Random: r.cfg.Random(), Now: at})
	}
	chosen := s.instances[i]
	if l.Prefill, _ = r.begin(v, t.prefill, chosen, s.anyhow, at); l.Prefill == nil {
		return false
	}
	l.Pairing = t.policies[how.keys[inCommon(slices.Index(t.prefill.known, chosen))]]
	l.Prefill.BootstrapPort = bootstrapPort(t.prefill, chosen.ID)
	return true
}

func bootstrapPort(t *target, id string) int {
	for n := range t.Instances {
		if t.Instances[n].ID == id {
			return t.Instances[n].BootstrapPort
		}
	}
	return 0
}
