package upstream

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
)

// ofKeys returns an instance that is ready and has the keys.
func ofKeys(id string, keys ...string) InstanceSpec {
	return InstanceSpec{ID: id, Address: id + ":80", State: Ready, Keys: keys, BootstrapPort: len(id)}
}

// pairsOf returns a route whose requests go to pairs of the instances.
func pairsOf(t require.TestingT, prefill, decode []InstanceSpec, change ...func(*Spec)) *Route {
	random := uint64(1)
	r := New(Config{
		Now: func() time.Time { return time.Unix(1000, 0) }, Random: func() uint64 { random = random*6364136223846793005 + 1442695040888963407; return random },
		Ejected: func(Ejection) {}, Drained: func(string) {},
	})
	spec := Spec{AppID: "app", Hosts: []string{"app.test"}, Policy: DefaultPolicy(), Targets: []TargetSpec{{
		DeploymentID: "dep", Version: 1, Weight: 1, Instances: decode, Prefill: prefill, Pairing: &pairing.Policy{Engine: pairing.NIXL},
	}}}
	for _, f := range change {
		f(&spec)
	}
	require.NoError(t, r.Update(spec))
	return r
}

func completion() *Want {
	return &Want{Host: "app.test", Until: time.Unix(2000, 0), Request: pairing.Read([]byte(`{"prompt":"a"}`))}
}

func TestPairs_HaveAKeyInCommon(t *testing.T) {
	prefill := []InstanceSpec{ofKeys("p0", "0"), ofKeys("p1", "1"), ofKeys("p2", "0", "1")}
	decode := []InstanceSpec{ofKeys("d0", "0"), ofKeys("d1", "1"), ofKeys("d2", "2")}
	r := pairsOf(t, prefill, decode)
	got := map[string]int{}
	for range 400 {
		l, why := r.Try(completion())
		require.Nil(t, why)
		got[l.Prefill.InstanceID()+"+"+l.InstanceID()]++
		require.Equal(t, 2, l.Prefill.BootstrapPort)
		l.End()
		l.Prefill.End()
	}
	require.Len(t, got, 4, "%v", got)
	for _, pair := range []string{"p0+d0", "p2+d0", "p1+d1", "p2+d1"} {
		require.Greater(t, got[pair], 40, pair)
	}
	for _, i := range r.now.Load().targets[0].prefill.known {
		require.Zero(t, i.InFlight())
	}

	// A request for something else goes to any decode server.
	alone := map[string]bool{}
	for range 100 {
		l, why := r.Try(&Want{Host: "app.test", Until: time.Unix(2000, 0)})
		require.Nil(t, why)
		require.Nil(t, l.Prefill)
		require.Equal(t, pairing.Path, l.Alone)
		alone[l.InstanceID()] = true
		l.End()
	}
	require.Len(t, alone, 3)
}

func TestPairs_VersionWithoutAPairLeavesItsShare(t *testing.T) {
	r := pairsOf(t, []InstanceSpec{ofKeys("p0", "0")}, []InstanceSpec{ofKeys("d0", "0")}, func(s *Spec) {
		s.Targets = append(s.Targets, TargetSpec{DeploymentID: "new", Version: 2, Weight: 99, Instances: []InstanceSpec{ofKeys("d1", "0")}, Pairing: &pairing.Policy{Engine: pairing.NIXL}})
	})
	for range 50 {
		l, why := r.Try(completion())
		require.Nil(t, why)
		require.Equal(t, "d0", l.InstanceID())
	}
	r = pairsOf(t, nil, []InstanceSpec{ofKeys("d0", "0")}, ofEngine(pairing.SGLang))
	_, why := r.Try(completion())
	require.Equal(t, NoInstance, why.Reason)
}

func ofEngine(e pairing.Engine) func(*Spec) {
	return func(s *Spec) { s.Targets[0].Pairing = &pairing.Policy{Engine: e} }
}

// requireAlone requires that a completion goes to the instance alone, and returns its lease.
func requireAlone(t *testing.T, r *Route, id string, why pairing.Reason) *Lease {
	t.Helper()
	l, refused := r.Try(completion())
	require.Nil(t, refused)
	require.Equal(t, id, l.InstanceID())
	require.Nil(t, l.Prefill)
	require.Equal(t, why, l.Alone)
	l.End()
	return l
}

func TestPairs_DecodeServersOfVLLMServeAloneWhileThereIsNoPair(t *testing.T) {
	t.Run("no prefill server", func(t *testing.T) {
		l := requireAlone(t, pairsOf(t, nil, []InstanceSpec{ofKeys("d0", "0")}), "d0", pairing.NoPair)
		require.Equal(t, pairing.NIXL, l.Pairing.Engine)
	})
	t.Run("a prefill server of another version", func(t *testing.T) {
		requireAlone(t, pairsOf(t, []InstanceSpec{ofKeys("p0", "1")}, []InstanceSpec{ofKeys("d0", "0")}), "d0", pairing.NoPair)
	})
	t.Run("an instance whose version is not known", func(t *testing.T) {
		_, why := pairsOf(t, nil, []InstanceSpec{ofKeys("d0")}).Try(completion())
		require.Equal(t, NoInstance, why.Reason)
	})
	t.Run("the prefill server cannot be reached", func(t *testing.T) {
		r := pairsOf(t, []InstanceSpec{ofKeys("p0", "0")}, []InstanceSpec{ofKeys("d0", "0")})
		w := completion()
		first, _ := r.Try(w)
		first.Prefill.RecordOutcome(health.Refusal)
		w.Tried(first.Prefill)
		again, why := r.Try(w)
		require.Nil(t, why)
		require.Nil(t, again.Prefill)
		require.Equal(t, pairing.NoPair, again.Alone)
	})
	t.Run("another decode server is at its limit", func(t *testing.T) {
		limit := func(s *Spec) { s.Policy.MaxInFlight = 1 }
		decode := []InstanceSpec{ofKeys("d0", "0"), ofKeys("d1", "0")}
		r := pairsOf(t, nil, decode, limit)
		first, why := r.Try(completion())
		require.Nil(t, why)
		second, why := r.Try(completion())
		require.Nil(t, why, "one decode server is free")
		require.NotEqual(t, first.InstanceID(), second.InstanceID())
		_, why = r.Try(completion())
		require.Equal(t, AtLimit, why.Reason)

		r = pairsOf(t, []InstanceSpec{ofKeys("p0", "0")}, decode, limit)
		_, why = r.Try(completion())
		require.Nil(t, why)
		_, why = r.Try(completion())
		require.Equal(t, AtLimit, why.Reason, "the prefill server is in service")
	})
	t.Run("the prefill server failed", func(t *testing.T) {
		r := pairsOf(t, []InstanceSpec{ofKeys("p0", "0")}, []InstanceSpec{ofKeys("d0", "0")})
		w := completion()
		first, _ := r.Try(w)
		first.Prefill.RecordOutcome(health.Failure)
		w.Tried(first.Prefill)
		_, why := r.Try(w)
		require.Equal(t, NoInstance, why.Reason, "the request itself may be the reason")
	})
}

// While a version takes over instances of another one, each instance gets requests in the way of its own version.
func TestPairs_GetRequestsInTheWayOfTheirVersion(t *testing.T) {
	of := func(ways ...string) map[string]bool {
		out := map[string]bool{}
		for _, way := range ways {
			out[way] = true
		}
		return out
	}
	ways := func(r *Route) map[string]bool {
		out := map[string]bool{}
		for range 100 {
			l, why := r.Try(completion())
			require.Nil(t, why)
			switch {
			case l.Prefill != nil:
				out[fmt.Sprintf("%s+%s %s", l.Prefill.InstanceID(), l.InstanceID(), l.Pairing.Engine)] = true
				l.Prefill.End()
			case l.Pairing == nil:
				out[l.InstanceID()+" alone"] = true
			}
			l.End()
		}
		return out
	}
	old := ofKeys("d0")
	old.Alone = true
	t.Run("from none, before the pair is complete", func(t *testing.T) {
		r := pairsOf(t, nil, []InstanceSpec{old, ofKeys("d1", "0")}, ofEngine(pairing.SGLang))
		require.Equal(t, of("d0 alone"), ways(r))
	})
	t.Run("from none", func(t *testing.T) {
		r := pairsOf(t, []InstanceSpec{ofKeys("p1", "0")}, []InstanceSpec{old, ofKeys("d1", "0")}, ofEngine(pairing.SGLang))
		require.Equal(t, of("d0 alone", "p1+d1 sglang"), ways(r))
	})
	t.Run("an instance of both versions", func(t *testing.T) {
		both := ofKeys("d0", "0")
		both.Alone = true
		require.Equal(t, of("d0 alone"), ways(pairsOf(t, nil, []InstanceSpec{both}, ofEngine(pairing.SGLang))))
		require.Equal(t, of("p1+d0 sglang"), ways(pairsOf(t, []InstanceSpec{ofKeys("p1", "0")}, []InstanceSpec{both}, ofEngine(pairing.SGLang))))
	})
	t.Run("from one engine to another", func(t *testing.T) {
		r := pairsOf(t, []InstanceSpec{ofKeys("p0", "0"), ofKeys("p1", "1")}, []InstanceSpec{ofKeys("d0", "0"), ofKeys("d1", "1")}, ofEngine(pairing.SGLang), func(s *Spec) {
			s.Targets[0].KeyPairings = map[string]*pairing.Policy{"0": {Engine: pairing.NIXL}}
		})
		require.Equal(t, of("p0+d0 nixl", "p1+d1 sglang"), ways(r))
	})
}

func TestPairs_FailedPrefillIsAvoidedAndEjected(t *testing.T) {
	r := pairsOf(t, []InstanceSpec{ofKeys("p0", "0"), ofKeys("p1", "0"), ofKeys("p2", "0"), ofKeys("p3", "0")}, []InstanceSpec{ofKeys("d0", "0")})
	for range 100 {
		w := completion()
		first, _ := r.Try(w)
		w.Tried(first.Prefill)
		second, why := r.Try(w)
		require.Nil(t, why)
		require.NotEqual(t, first.Prefill.InstanceID(), second.Prefill.InstanceID())
	}
	l, _ := r.Try(completion())
	for range 10 {
		l.Prefill.RecordOutcome(health.Refusal)
	}
	for range 100 {
		again, _ := r.Try(completion())
		require.NotEqual(t, l.Prefill.InstanceID(), again.Prefill.InstanceID())
	}
	require.Equal(t, l.Prefill.InstanceID(), r.Health()[0].InstanceID)
}

func TestPairs_LimitOfRequestsHoldsForBoth(t *testing.T) {
	r := pairsOf(t, []InstanceSpec{ofKeys("p0", "0")}, []InstanceSpec{ofKeys("d0", "0"), ofKeys("d1", "0")}, func(s *Spec) { s.Policy.MaxInFlight = 1 })
	first, why := r.Try(completion())
	require.Nil(t, why)
	_, why = r.Try(completion())
	require.Equal(t, AtLimit, why.Reason)
	first.Prefill.End()
	second, why := r.Try(completion())
	require.Nil(t, why)
	require.NotEqual(t, first.InstanceID(), second.InstanceID())
}

// Whatever instances come and go, and whichever requests fail, the instances of a request have a key in common.
func TestPairs_NeverHaveTwoKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(role string) (out []InstanceSpec) {
			for n := range rapid.IntRange(0, 4).Draw(t, role) {
				i := ofKeys(fmt.Sprint(role, n))
				for _, key := range []string{"a", "b", "c"} {
					if rapid.Bool().Draw(t, key) {
						i.Keys = append(i.Keys, key)
					}
				}
				i.State = rapid.SampledFrom([]State{Ready, Ready, Ready, NotReady, Draining}).Draw(t, "state")
				out = append(out, i)
			}
			return out
		}
		policy := DefaultPolicy()
		policy.Strategy = rapid.SampledFrom(balance.Names()).Draw(t, "strategy")
		policy.MaxInFlight = int64(rapid.IntRange(0, 2).Draw(t, "limit"))
		var r *Route
		var spec Spec
		update := func() {
			spec = Spec{AppID: "app", Hosts: []string{"app.test"}, Policy: policy}
			for n := range rapid.IntRange(1, 2).Draw(t, "versions") {
				name := fmt.Sprint("v", n)
				spec.Targets = append(spec.Targets, TargetSpec{
					DeploymentID: name, Weight: 1, Instances: draw(name + "d"), Prefill: draw(name + "p"), Pairing: &pairing.Policy{Engine: pairing.NIXL},
				})
			}
			if r == nil {
				r = pairsOf(t, nil, nil)
			}
			if err := r.Update(spec); err != nil {
				t.Fatal(err)
			}
		}
		update()
		w := completion()
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			if rapid.IntRange(0, 4).Draw(t, "update") == 0 {
				update()
			}
			w.Affinity = rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "affinity")
			l, _ := r.Try(w)
			if l == nil {
				w = completion()
				continue
			}
			if l.Prefill == nil && l.Alone == pairing.NoPair {
				l.End()
				continue
			}
			if l.Prefill == nil || l.Prefill.DeploymentID != l.DeploymentID {
				t.Fatalf("%s of %s has no partner of its version", l.InstanceID(), l.DeploymentID)
			}
			at := slices.IndexFunc(spec.Targets, func(s TargetSpec) bool { return s.DeploymentID == l.DeploymentID })
			of := func(all []InstanceSpec, id string) InstanceSpec {
				return all[slices.IndexFunc(all, func(i InstanceSpec) bool { return i.ID == id })]
			}
			p, d := of(spec.Targets[at].Prefill, l.Prefill.InstanceID()), of(spec.Targets[at].Instances, l.InstanceID())
			if !slices.ContainsFunc(p.Keys, func(key string) bool { return slices.Contains(d.Keys, key) }) {
				t.Fatalf("%v and %v have no key in common", p, d)
			}
			switch rapid.IntRange(0, 3).Draw(t, "end") {
			case 0: // it goes on
			case 1:
				l.Prefill.RecordOutcome(health.Refusal)
				w.Tried(l.Prefill)
				l.End()
				l.Prefill.End()
			case 2:
				l.RecordOutcome(health.Refusal)
				w.Tried(l)
				l.End()
				l.Prefill.End()
			case 3:
				l.End()
				l.Prefill.End()
			}
		}
	})
}
