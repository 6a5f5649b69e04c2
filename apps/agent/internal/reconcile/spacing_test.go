package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLooksTakeATenthOfTheTimeAtMostAndAreNeverFarApart(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0:                     observeSpacing,
		time.Millisecond:      observeSpacing,
		10 * time.Millisecond: 100 * time.Millisecond,
		time.Second:           maxObserveSpacing,
	} {
		require.Equal(t, want, spacing(took), took)
	}
}
