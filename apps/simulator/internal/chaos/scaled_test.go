package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChecker_FindsAnotherWriterOfReplicas(t *testing.T) {
	s := setup(t)
	s.books.decisions = []decision{{app: "loose-0", region: here.region, at: 1, from: 1, to: 2}, {app: "loose-0", region: there.region, at: 1, to: 7}}
	require.Nil(t, s.compareContent(s.books, s.sight), "loose-0 is not in the other region")
	s.books.decisions[0].to = 3
	d := s.compareContent(s.books, s.sight)
	require.NotNil(t, d)
	require.Equal(t, anotherWriter, d.kind)
	require.Equal(t, here, d.place)
}

func TestLoad_ChangesWithTimeAndRegion(t *testing.T) {
	l := load{seed: seed}
	seen := map[int]bool{}
	for range 40 {
		l.at.Add(1)
		for _, region := range []string{"region-00001", "region-00004"} {
			n := l.replicasNeeded(region)
			seen[n] = true
			cpu, ok := l.cpuOf(region, scaledName, "main")
			require.True(t, ok)
			require.InDelta(t, float64(n), cpu/cpuMillicores/cpuTarget*100, 1e-9)
		}
	}
	require.Len(t, seen, maxScaled)
	_, ok := l.cpuOf("region-1", "loose-0", "main")
	require.False(t, ok)
}

// pooled turns the fixture's app loose-0 into the pool, with one running instance of each role.
func pooled(t *testing.T) *fixture {
	s := setup(t)
	r := &s.books.rows[0]
	r.app, r.replicas, r.readyReplicas, r.roles = poolName, 100, 100, map[string]int{prefill: 1, decode: 1}
	s.books.roles = map[place]map[string]int{here: {prefill: 1, decode: 1}}
	s.books.decisions = []decision{
		{app: poolName, region: here.region, role: prefill, at: 1, from: 2, to: 1}, {app: poolName, region: here.region, role: decode, at: 1, from: 1, to: 1},
	}
	require.Nil(t, s.compareContent(s.books, s.sight))
	return s
}

// atZero takes the fixture's pool to zero.
func (s *fixture) atZero() {
	r := &s.books.rows[0]
	r.replicas, r.readyReplicas, r.count = 0, 0, 0
	s.books.instances = s.books.instances[2:]
	delete(s.books.roles, here)
	delete(s.sight.running, here.region)
	delete(s.sight.ready, here.region)
	for i := range s.books.decisions {
		s.books.decisions[i].to = 0
	}
}

func TestChecker_HoldsEachRoleOfAPool(t *testing.T) {
	for name, c := range map[string]struct {
		kind string
		do   func(s *fixture)
	}{
		"a role without a decision": {anotherWriter, func(s *fixture) { s.books.decisions[0].to = 2 }},
		"a role with the instances of another role": {roleMissed, func(s *fixture) {
			s.books.roles[here] = map[string]int{prefill: 0, decode: 2}
		}},
		"a role above its maximum": {outOfBounds, func(s *fixture) {
			s.books.rows[0].roles = map[string]int{prefill: 0, decode: 2}
		}},
		"half of the pool": {notTogether, func(s *fixture) {
			r := &s.books.rows[0]
			r.replicas, r.readyReplicas, r.roles = 50, 50, map[string]int{prefill: 2, decode: 2}
		}},
		"a pool at zero with a decision for instances": {anotherWriter, func(s *fixture) { s.atZero(); s.books.decisions[0].to = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			s := pooled(t)
			c.do(s)
			d := s.compareContent(s.books, s.sight)
			require.NotNil(t, d)
			require.Equal(t, c.kind, d.kind, "%v", d)
		})
	}
	t.Run("a pool at zero", func(t *testing.T) {
		s := pooled(t)
		require.Equal(t, staysAwake, s.books.wronglyAwake().kind)
		s.atZero()
		require.Nil(t, s.compareContent(s.books, s.sight))
		require.Nil(t, s.books.wronglyAwake())
	})
	t.Run("a request woke it", func(t *testing.T) {
		s := pooled(t)
		s.books.decisions[0].to, s.books.decisions[1].to = 0, 0
		require.Nil(t, s.compareContent(s.books, s.sight))
	})
}

func TestChecker_FindsADecisionOutOfBounds(t *testing.T) {
	for _, c := range []struct {
		app, role, limit string
		to               []int32
		bad              bool
	}{
		{scaledName, "", "", []int32{0}, true},
		{scaledName, "", "", []int32{maxScaled}, false},
		{scaledName, "", "Maximum", []int32{maxScaled + 1}, true},
		{scaledName, "", "Quota", []int32{0}, false},
		{zeroName, "", "", []int32{0}, false},
		{zeroName, "", "", []int32{-1}, true},
		{poolName, prefill, "", []int32{0, 0}, false},
		{poolName, prefill, "", []int32{0, 1}, true},
		{poolName, prefill, "", []int32{1, maxScaled + 1}, true},
		{"loose-0", "", "", []int32{100}, false},
	} {
		s := setup(t)
		var all []decision
		for i, to := range c.to {
			all = append(all, decision{app: c.app, region: here.region, role: []string{c.role, decode}[i], to: to, limit: c.limit})
		}
		s.checkClaims(claims{decisions: all})
		bad := s.foundViolations()
		require.Equal(t, c.bad, len(bad) > 0, "%+v: %v", c, bad)
		if c.bad {
			require.Equal(t, outOfBounds, bad[0].Kind)
		}
	}
}
