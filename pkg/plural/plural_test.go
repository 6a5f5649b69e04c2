package plural

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCount_OneHasNoS(t *testing.T) {
	require.Equal(t, "0 replicas", Count(0, "replica"))
	require.Equal(t, "1 replica", Count(int32(1), "replica"))
	require.Equal(t, "2 replicas", Count(int64(2), "replica"))
}
