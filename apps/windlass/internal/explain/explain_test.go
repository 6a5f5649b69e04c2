package explain

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestFind(t *testing.T) {
	t.Run("every form of a reason", func(t *testing.T) {
		for _, form := range []string{"ERROR_REASON_NO_CAPACITY", "NO_CAPACITY", "no-capacity", "NoCapacity", "nocapacity"} {
			found := Find(form)
			require.Len(t, found, 1, form)
			require.Equal(t, "ERROR_REASON_NO_CAPACITY", found[0].Reason)
		}
	})
	t.Run("both meanings of a reason of two kinds", func(t *testing.T) {
		var kinds []string
		for _, e := range Find("RegionUnreachable") {
			kinds = append(kinds, e.Kind)
		}
		// The error ERROR_REASON_REGION_UNREACHABLE is the third.
		require.Equal(t, []string{"Reasons of deployments, rollouts and regions", "Error reasons", "History entries"}, kinds)
	})
	t.Run("every error reason has all its parts", func(t *testing.T) {
		for number, name := range windlassv1.ErrorReason_name {
			if number == 0 {
				require.Empty(t, Hint(name))
				continue
			}
			require.Equal(t, "See `windlass explain "+strings.TrimPrefix(name, "ERROR_REASON_")+"`.", Hint(name))
			for _, e := range Find(name) {
				require.NotContains(t, []string{e.Cause, e.See, e.Do, e.Kind, e.Anchor}, "", name)
			}
		}
	})
	t.Run("an unknown reason has no entry", func(t *testing.T) {
		require.Empty(t, Find("Nonesuch"))
		require.Empty(t, Find(""))
		require.Empty(t, Hint(""))
	})
}
