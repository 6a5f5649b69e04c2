package modelstate

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTable_DecidesEveryPair(t *testing.T) {
	require.Len(t, States(), 13)
	for _, e := range Events() {
		require.NotEmpty(t, e.String())
		for _, s := range States() {
			require.NotEmpty(t, s.Facts().Name)
			to := table[e][s]
			require.GreaterOrEqual(t, to, none, "%s in %s", e, s)
			require.Less(t, to, states, "%s in %s", e, s)
			// The zero value of State is Unknown. No event leads to it, so that a forgotten pair is found.
			require.NotEqual(t, Unknown, to, "%s in %s is not decided", e, s)
		}
	}
}

func TestTable_Guarantees(t *testing.T) {
	each := func(check func(t *testing.T, from State, e Event, to State)) {
		for _, e := range Events() {
			for _, s := range States() {
				if to := table[e][s]; to != none {
					check(t, s, e, to)
				}
			}
		}
	}
	t.Run("a replica to which gateways may route is not unloaded", func(t *testing.T) {
		each(func(t *testing.T, from State, e Event, to State) {
			if from.Facts().Routed && e != ServerLost && e != SeenAbsent {
				require.NotContains(t, []State{UnloadRequested, Unloading, Unloaded}, to, "%s in %s", e, from)
			}
		})
	})
	t.Run("only a loaded model gets traffic", func(t *testing.T) {
		each(func(t *testing.T, from State, e Event, to State) {
			if to.Facts().Routed && !from.Facts().Routed {
				require.Contains(t, []Event{LoadDone, SeenReady}, e, "%s in %s", e, from)
			}
		})
	})
	t.Run("only gateways make a model available", func(t *testing.T) {
		each(func(t *testing.T, from State, e Event, to State) {
			if to == Available {
				require.Equal(t, Routed, e)
				require.Equal(t, Loaded, from)
			}
		})
	})
	t.Run("a lost server holds nothing", func(t *testing.T) {
		for _, s := range States() {
			r, _ := Replica{State: s}.Apply(ServerLost, 0, "")
			require.False(t, r.State.Facts().Holds, s)
		}
	})
	t.Run("a model that is ready is never loaded again", func(t *testing.T) {
		for _, s := range States() {
			require.NotEqual(t, LoadRequested, table[SeenReady][s], s)
		}
	})
}

func TestReplica_Apply(t *testing.T) {
	t.Run("a replica is loaded, routed and unloaded", func(t *testing.T) {
		r := Replica{State: Unloaded}
		step := func(e Event, want State) {
			t.Helper()
			var changed bool
			r, changed = r.Apply(e, r.Tick, "why")
			require.True(t, changed)
			require.Equal(t, want, r.State)
		}
		step(RequestLoad, LoadRequested)
		step(LoadStarted, Loading)
		step(LoadDone, Loaded)
		step(Routed, Available)
		step(SeenUnready, LoadedUnavailable)
		require.Equal(t, "why", r.Reason)
		step(SeenReady, Loaded)
		require.Empty(t, r.Reason)
		step(Routed, Available)
		step(Drain, Draining)
		step(RequestUnload, UnrouteRequested)
		step(Unrouted, UnloadRequested)
		step(UnloadStarted, Unloading)
		step(UnloadDone, Unloaded)
	})
	t.Run("a result with an older tick is ignored", func(t *testing.T) {
		r, _ := Replica{State: Unloaded}.Apply(RequestLoad, 0, "")
		first := r.Tick
		r, _ = r.Apply(LoadStarted, first, "")
		r, _ = r.Apply(RequestUnload, 0, "")
		require.Equal(t, UnloadRequested, r.State)
		r, changed := r.Apply(LoadDone, first, "")
		require.False(t, changed)
		r, _ = r.Apply(UnloadStarted, r.Tick, "")
		r, _ = r.Apply(UnloadDone, r.Tick, "")
		r, _ = r.Apply(RequestLoad, 0, "")
		r, _ = r.Apply(LoadStarted, r.Tick, "")
		_, changed = r.Apply(LoadBroke, first, "late")
		require.False(t, changed, "the failure of the first load says nothing about the second load")
	})
	t.Run("an observation that began before a request is ignored", func(t *testing.T) {
		r, _ := Replica{State: Available, Tick: 3}.Apply(RequestUnload, 0, "")
		r, _ = r.Apply(Unrouted, r.Tick, "")
		_, changed := r.Apply(SeenAbsent, 3, "")
		require.False(t, changed)
		lost, changed := r.Apply(ServerLost, 0, "")
		require.True(t, changed)
		require.Equal(t, Unloaded, lost.State)
	})
	t.Run("an unload that is taken back keeps the model", func(t *testing.T) {
		r := Replica{State: Available, Tick: 3}
		r, _ = r.Apply(RequestUnload, 0, "")
		old := r.Tick
		r, _ = r.Apply(RequestLoad, 0, "")
		require.Equal(t, LoadedUnavailable, r.State)
		_, changed := r.Apply(Unrouted, old, "")
		require.False(t, changed)
		r, _ = r.Apply(SeenReady, r.Tick, "")
		require.Equal(t, Loaded, r.State)
	})
	t.Run("an unknown state or event changes nothing", func(t *testing.T) {
		_, changed := Replica{State: 99}.Apply(RequestLoad, 0, "")
		require.False(t, changed)
		_, changed = Replica{}.Apply(-1, 0, "")
		require.False(t, changed)
		require.Equal(t, "State(99)", State(99).String())
		require.Equal(t, "Event(99)", Event(99).String())
		require.Equal(t, "Model(99)", Model(99).String())
	})
}

// simulation is a server with gateways. They carry out the operations that a state requires, and their results may be
// late.
type simulation struct {
	replica Replica
	// has is whether the server has the model, and routed whether gateways route to it.
	has, routed bool
	// late are results that have not come yet.
	late []result
}

type result struct {
	event Event
	tick  int64
}

func (s *simulation) apply(e Event, tick int64) {
	s.replica, _ = s.replica.Apply(e, tick, "")
}

// work does one step of the operation that the state requires.
func (s *simulation) work() {
	tick := s.replica.Tick
	switch s.replica.State {
	case LoadRequested:
		s.apply(LoadStarted, tick)
		s.has = true
		s.late = append(s.late, result{LoadDone, tick})
	case Loaded:
		s.routed = true
		s.late = append(s.late, result{Routed, tick})
	case UnrouteRequested:
		s.routed = false
		s.late = append(s.late, result{Unrouted, tick})
	case UnloadRequested:
		s.routed = false
		s.apply(UnloadStarted, tick)
		s.has = false
		s.late = append(s.late, result{UnloadDone, tick})
	case UnloadFailed:
		s.apply(RequestUnload, 0)
	default: // The other states ask for nothing.
	}
}

func (s *simulation) observe() {
	if s.replica.State.Facts().Busy {
		return // An operation runs, and its result is not known yet.
	}
	if s.has {
		s.apply(SeenReady, s.replica.Tick)
	} else {
		s.apply(SeenAbsent, s.replica.Tick)
	}
}

func TestReplica_ConvergesAfterRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := simulation{replica: Replica{State: Unknown}, has: rapid.Bool().Draw(t, "has")}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0:
				s.apply(RequestLoad, 0)
			case 1:
				s.apply(RequestUnload, 0)
			case 2:
				s.has, s.routed = false, false
				s.apply(ServerLost, 0)
			case 3, 4:
				s.work()
			case 5:
				s.observe()
			case 6:
				if len(s.late) > 0 {
					i := rapid.IntRange(0, len(s.late)-1).Draw(t, "late")
					s.apply(s.late[i].event, s.late[i].tick)
					s.late = append(s.late[:i:i], s.late[i+1:]...)
				}
			case 7:
				s.apply(Drain, 0)
			}
			if s.replica.State == UnloadRequested || s.replica.State == Unloading {
				s.routed = false
			}
		}
		load := rapid.Bool().Draw(t, "load")
		for range 40 {
			s.observe()
			if load {
				s.apply(RequestLoad, 0)
			} else if s.replica.State.Facts().Holds {
				s.apply(RequestUnload, 0)
			}
			s.work()
			for _, r := range s.late {
				s.apply(r.event, r.tick)
			}
			s.late = nil
		}
		if load {
			require.Equal(t, Available, s.replica.State)
			require.True(t, s.has && s.routed)
		} else {
			require.False(t, s.replica.State.Facts().Holds, s.replica.State)
			require.False(t, s.has || s.routed)
		}
	})
}

func TestSummarize(t *testing.T) {
	in := func(states ...State) []Replica {
		var all []Replica
		for _, s := range states {
			all = append(all, Replica{State: s})
		}
		return all
	}
	three := Wanted{Replicas: 3, MinReplicas: 1}
	for name, c := range map[string]struct {
		wanted   Wanted
		replicas []Replica
		want     Summary
	}{
		"all":            {three, in(Available, Available, Available), Summary{State: ModelAvailable, Available: 3}},
		"partial":        {three, in(Available, Loading), Summary{State: ModelAvailable, Available: 1, Coming: 1, Partial: true}},
		"no room":        {Wanted{Replicas: 2, MinReplicas: 2, Short: 1}, in(Available), Summary{State: ModelScheduleFailed, Available: 1, Partial: true}},
		"coming":         {three, in(LoadRequested), Summary{State: ModelProgressing, Coming: 1}},
		"failed":         {three, in(LoadFailed), Summary{State: ModelFailed, Failed: 1}},
		"failed, retry":  {three, in(LoadFailed, Loading), Summary{State: ModelProgressing, Failed: 1, Coming: 1}},
		"nowhere":        {Wanted{Replicas: 1, MinReplicas: 1, Short: 1}, nil, Summary{State: ModelScheduleFailed}},
		"unknown":        {three, in(Unknown), Summary{State: ModelUnknown}},
		"draining":       {three, in(Draining), Summary{State: ModelAvailable, Available: 1, Partial: true}},
		"scaled down":    {Wanted{}, in(Unloaded), Summary{State: ModelScaledDown}},
		"going down":     {Wanted{}, in(Unloading), Summary{State: ModelProgressing, Leaving: 1}},
		"deleting":       {Wanted{Deleted: true}, in(UnrouteRequested), Summary{State: ModelTerminating, Leaving: 1}},
		"deleted":        {Wanted{Deleted: true}, in(Unloaded), Summary{State: ModelTerminated}},
		"delete failed":  {Wanted{Deleted: true}, in(UnloadFailed), Summary{State: ModelTerminateFailed, Leaving: 1}},
		"not ready":      {three, in(LoadedUnavailable), Summary{State: ModelProgressing, Coming: 1}},
		"nothing so far": {three, nil, Summary{State: ModelProgressing}},
	} {
		require.Equal(t, c.want, Summarize(c.wanted, c.replicas), name)
	}
}
