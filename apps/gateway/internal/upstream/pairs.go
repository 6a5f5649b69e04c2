package upstream

import (
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
)

// A request that goes to a pair gets both instances in one choice. First the route finds the instances that prefill and
// can take the request. An instance that decodes counts only if it has a pairing key in common with one of them. The
// route chooses the instance that decodes as it does without pairs. Then it chooses the instance that prefills, among
// those that have a key in common with the first. So both instances of a request have a key in common, whatever happens
// between the two choices.

// numberKeys numbers the pairing keys of the target's instances and of those in its prefill.
func (t *target) numberKeys() {
	numbers := map[string]int{}
	for _, one := range []*target{t, t.prefill} {
		keys := map[string][]string{}
		for _, is := range one.Instances {
			keys[is.ID] = is.Keys
		}
		for _, i := range one.known {
			var own []int
			for _, key := range keys[i.ID] {
				n, ok := numbers[key]
				if !ok {
					n = len(numbers)
					numbers[key] = n
				}
				own = append(own, n)
			}
			one.keys = append(one.keys, own)
		}
	}
	t.keyCount, t.prefill.keyCount = len(numbers), len(numbers)
}

// whyAlone returns why the request goes to an instance of the target alone. Empty: it goes to a pair.
func (t *target) whyAlone(w *Want) pairing.Reason {
	if t.prefill == nil || w.Request == nil {
		return pairing.Path
	}
	return t.Pairing.WhyAlone(w.Request)
}

// keysOf returns which pairing keys the instances of s have, by number. Their order is that of known.
func (t *target) keysOf(s *set) []bool {
	out := make([]bool, t.keyCount)
	k := 0
	for _, i := range s.instances {
		k += slices.Index(t.known[k:], i)
		for _, n := range t.keys[k] {
			out[n] = true
		}
	}
	return out
}

// keep removes the instances from s that have none of the keys. Their order is that of known.
func (t *target) keep(s *set, keys []bool) {
	var left set
	left.anyhow = s.anyhow
	k := 0
	for n, i := range s.instances {
		k += slices.Index(t.known[k:], i)
		if slices.ContainsFunc(t.keys[k], func(n int) bool { return keys[n] }) {
			left.instances, left.endpoints = append(left.instances, i), append(left.endpoints, s.endpoints[n])
		}
	}
	*s = left
}

// countPairs is countUsable for a request that goes to a pair. It counts the instances that decode, and for which an
// instance that prefills can take the request.
func (t *target) countPairs(v *view, w *Want, now time.Time, s *set, why *refusal) int {
	var prefills, decodes set
	if t.prefill.countUsable(v, w, now, &prefills, why) == 0 || t.countUsable(v, w, now, &decodes, why) == 0 {
		return 0
	}
	t.keep(&decodes, t.prefill.keysOf(&prefills))
	if s != nil {
		*s = decodes
	}
	return len(decodes.instances)
}

// choosePrefill returns a lease on an instance that prefills for the instance decodes. Nil: no such instance can take
// the request any more.
func (r *Route) choosePrefill(v *view, t *target, decodes *instance, w *Want, at time.Time) *Lease {
	var s set
	var why refusal
	if t.prefill.countUsable(v, w, at, &s, &why) == 0 {
		return nil
	}
	t.prefill.keep(&s, t.keysOf(&set{instances: []*instance{decodes}}))
	if len(s.instances) == 0 {
		return nil
	}
	i := 0
	if len(s.instances) > 1 {
		i = t.prefill.strategy.Pick(s.endpoints, balance.Request{Affinity: w.Affinity, Random: r.cfg.Random(), Now: at})
	}
	l, _ := r.begin(v, t.prefill, s.instances[i], s.anyhow, at)
	if l != nil {
		l.BootstrapPort = bootstrapPort(t.prefill, s.instances[i].ID)
	}
	return l
}

func bootstrapPort(t *target, id string) int {
	for n := range t.Instances {
		if t.Instances[n].ID == id {
			return t.Instances[n].BootstrapPort
		}
	}
	return 0
}
