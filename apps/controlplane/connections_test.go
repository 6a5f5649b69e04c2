package controlplane

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConnFlags_RestateHasItsOwnLimit(t *testing.T) {
	t.Parallel()
	limits := connFlags{MaxConnections: 10, MaxRestate: 1024}.restateLimits()
	require.Equal(t, []int{1024, 512}, []int{limits.Total, limits.PerAddress})
	limits = connFlags{MaxRestate: -1}.restateLimits()
	require.Equal(t, []int{-1, 0}, []int{limits.Total, limits.PerAddress})
	require.NoError(t, connFlags{MaxRestate: -1}.Validate())
	require.ErrorContains(t, connFlags{}.Validate(), "--max-restate-connections=0: use at least 1")
}
