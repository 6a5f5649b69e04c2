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
			n := l.replicas(region)
			seen[n] = true
			cpu, ok := l.cpu(region, scaledName)
			require.True(t, ok)
			require.InDelta(t, float64(n), cpu/cpuMillicores/cpuTarget*100, 1e-9)
		}
	}
	require.Len(t, seen, mostScaled)
	_, ok := l.cpu("region-1", "loose-0")
	require.False(t, ok)
}
