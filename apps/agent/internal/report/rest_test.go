package report

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRest_LastsLongerAfterALongLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for took, want := range map[time.Duration]time.Duration{
			0:                0,
			time.Millisecond: lookShare * time.Millisecond,
			time.Second:      maxRest,
		} {
			talk := &sessionState{}
			talk.awaitLook(t.Context())
			time.Sleep(took)
			talk.noteLook()
			begin := time.Now()
			talk.awaitLook(t.Context())
			require.Equal(t, want, time.Since(begin), took)
			require.Equal(t, time.Now(), talk.lookBegan)
		}
	})
}
