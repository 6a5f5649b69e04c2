package process_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

func TestObserve_SharesUnchangedLists(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	for _, id := range []string{"dep_1", "dep_2"} {
		require.NoError(t, rt.Apply(t.Context(), assignment(id, 2, self(t))))
		until(t, rt, id, allReady(2))
	}
	one, two := instances(t, rt, "dep_1"), instances(t, rt, "dep_2")
	was := one[0]
	require.Same(t, &two[0], &instances(t, rt, "dep_2")[0])
	require.NoError(t, rt.Restart(t.Context(), was.ID))
	now := until(t, rt, "dep_1", func(all []runtime.Instance) bool { return len(all) == 2 && all[0].Restarts == 1 })
	require.NotSame(t, &one[0], &now[0])
	require.Equal(t, was, one[0], "the old list is unchanged")
	require.Same(t, &two[0], &instances(t, rt, "dep_2")[0])
}
