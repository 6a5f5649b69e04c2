package pool

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// trace returns the rest states of a move in the given number of steps: new prefill and decode servers, then old ones.
func trace(steps, prefill, decode int) string {
	out := []string{fmt.Sprintf("0,0 %d,%d", prefill, decode)}
	for k := 1; k <= steps; k++ {
		out = append(out, fmt.Sprintf("%d,%d %d,%d", unitsOf(k, steps, prefill), unitsOf(k, steps, decode),
			unitsOf(steps-k, steps, prefill), unitsOf(steps-k, steps, decode)))
	}
	return strings.Join(out, " / ")
}

func TestUnits(t *testing.T) {
	t.Run("rest states keep the roles of each version in proportion", func(t *testing.T) {
		require.Equal(t, "0,0 8,2 / 1,1 7,2 / 2,1 6,2 / 3,1 5,2 / 4,1 4,1 / 5,2 3,1 / 6,2 2,1 / 7,2 1,1 / 8,2 0,0", trace(8, 8, 2))
		require.Equal(t, "0,0 5,2 / 2,1 4,2 / 4,2 2,1 / 5,2 0,0", trace(3, 5, 2))
		require.Equal(t, "0,0 1,1 / 1,1 0,0", trace(1, 1, 1))
		require.Equal(t, "0,0 8,2 / 2,1 6,2 / 4,1 4,1 / 6,2 2,1 / 8,2 0,0", trace(4, 8, 2))
	})
	t.Run("a share is ready with its instances, and a pool is whole at every step", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			share := rapid.IntRange(0, Whole).Draw(t, "share")
			var now, rest, all []Role
			for range rapid.IntRange(1, 4).Draw(t, "roles") {
				n := rapid.IntRange(1, 256).Draw(t, "instances")
				have := Units(share, n)
				require.Equal(t, min(share, 1), min(have, 1), "a share has an instance of every role")
				require.LessOrEqual(t, have+Units(Whole-share, n), n+1, "at most one more than the pool has")
				now, rest, all = append(now, Role{have, n}), append(rest, Role{Units(Whole-share, n), n}), append(all, Role{n, n})
			}
			require.GreaterOrEqual(t, Ready(now), share)
			require.LessOrEqual(t, Existing(now), share)
			require.GreaterOrEqual(t, Ready(now)+Ready(rest), Whole, "set capacity of both versions")
			require.Equal(t, Whole, Ready(all))
			require.LessOrEqual(t, Existing(all), Whole)
		})
	})
	t.Run("scaling in a step keeps an instance of every role that has some", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			share := rapid.IntRange(1, Whole).Draw(t, "share")
			n := rapid.IntRange(1, 256).Draw(t, "instances")
			require.GreaterOrEqual(t, Units(share, n), 1)
			require.GreaterOrEqual(t, Units(share, n+1), Units(share, n))
			require.LessOrEqual(t, Units(share-1, n), Units(share, n))
		})
	})
}

func TestReady(t *testing.T) {
	require.Equal(t, 0, Ready(nil))
	require.Equal(t, 0, Ready([]Role{{8, 8}, {0, 2}}), "a role without ready instances")
	require.Equal(t, 50, Ready([]Role{{7, 8}, {1, 2}}), "the scarcest role")
	require.Equal(t, 87, Ready([]Role{{7, 8}, {2, 2}}))
	require.Equal(t, 100, Ready([]Role{{9, 8}, {3, 2}}), "more than there should be")
}

func TestExisting(t *testing.T) {
	require.Equal(t, 0, Existing([]Role{{0, 8}, {0, 2}}))
	require.Equal(t, 51, Existing([]Role{{1, 8}, {2, 2}}), "the role with the largest share counts")
	require.Equal(t, 101, Existing([]Role{{8, 8}, {3, 2}}), "one more than the pool has")
	require.Equal(t, 1, Existing([]Role{{3, 0}}), "a role that the pool does not have any more")
}

func TestStep(t *testing.T) {
	require.Equal(t, 1, Step(0, 8))
	require.Equal(t, 2, Step(25, 8))
	require.Equal(t, 1, Step(25, 2))
}
