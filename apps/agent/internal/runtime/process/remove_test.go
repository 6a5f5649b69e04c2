package process_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRemove_DuringCreationLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			id := fmt.Sprintf("dep_%d", i)
			for round := range 8 {
				a := assignment(id, 2, self(t))
				a.Generation = int64(round + 1)
				if rt.Apply(t.Context(), a) != nil || rt.Remove(t.Context(), id) != nil {
					t.Errorf("%s: refused", id)
				}
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool {
		seen, err := rt.Observe(t.Context())
		return err == nil && len(seen.Deployments) == 0
	}, patience, 20*time.Millisecond)
	require.Empty(t, h.leftovers(t))
}
