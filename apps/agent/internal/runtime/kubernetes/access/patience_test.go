package access

import (
	"context"
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// reconcilerTurn is the longest time that the reconciler waits in an outage.
const reconcilerTurn = 4 * time.Second

func TestPatience_PausesOfAnOutageAreUnderTenSeconds(t *testing.T) {
	const work = 2 * time.Second // for the calls after the outage
	require.LessOrEqual(t, Outage.Max+reconcilerTurn+work, 10*time.Second, "a change waits for its turn and for the breaker")
	require.LessOrEqual(t, Outage.Max+Reopen.Max+work, 10*time.Second, "missed events are listed, and then a watch opens")
}

func TestPatience_ServerIsCalledWithinSecondsOfItsReturn(t *testing.T) {
	for _, lasts := range []time.Duration{0, time.Second, time.Minute, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			begin, calls := time.Now(), 0
			got, err := askServer(t.Context(), patience{policy: Outage, random: rand.Float64}, func() (string, error) {
				calls++
				switch {
				case time.Since(begin) >= lasts:
					return "list", nil
				case calls%2 == 0:
					return "", apierrors.NewServiceUnavailable("not yet")
				default:
					return "", syscall.ECONNREFUSED
				}
			})
			require.NoError(t, err)
			require.Equal(t, "list", got)
			require.LessOrEqual(t, time.Since(begin)-lasts, Outage.Max)
			require.LessOrEqual(t, calls, 2+int(lasts/time.Second), "less than one call a second")
		})
	}
}

func TestPatience_DefiniteAnswersAreNotRetried(t *testing.T) {
	for _, said := range []error{
		apierrors.NewResourceExpired("too old"), apierrors.NewUnauthorized("who?"),
	} {
		calls := 0
		_, err := askServer(t.Context(), patience{policy: Outage, random: rand.Float64}, func() (int, error) { calls++; return 0, said })
		require.ErrorIs(t, err, said)
		require.Equal(t, 1, calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	down := errors.New("connection refused")
	_, err := askServer(ctx, patience{policy: Outage, random: rand.Float64}, func() (int, error) { cancel(); return 0, down })
	require.ErrorIs(t, err, down, "a call does not wait when the agent stops")
}
