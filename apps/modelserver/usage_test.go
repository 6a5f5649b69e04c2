package modelserver

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUsage_IsOfRequestsModelsAndTokens(t *testing.T) {
	cfg, _, err := ParseArgs(nil, func(string) (string, bool) { return "", false })
	require.NoError(t, err)
	s, err := New(cfg)
	require.NoError(t, err)
	require.Equal(t, Usage{}, s.Usage())

	release, err := s.queue.acquire(t.Context())
	require.NoError(t, err)
	s.cache.addTokens(1000)
	require.NoError(t, s.models.budget.reserveMemory(5))
	require.Equal(t, Usage{Cores: 1, MemoryBytes: 5<<20 + 1000*128<<10}, s.Usage())

	release()
	s.cache.addTokens(-1000)
	s.models.budget.release(5)
	require.Equal(t, Usage{}, s.Usage())
}
