package backoff

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func fixed(v float64) func() float64 { return func() float64 { return v } }

func TestDelay_StaysInItsBoundsAndNeverFalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{
			Min: time.Duration(rapid.Int64Range(1, math.MaxInt64).Draw(t, "min")),
			Max: time.Duration(rapid.Int64Range(1, math.MaxInt64).Draw(t, "max")),
		}
		attempt := rapid.IntRange(0, 1<<30).Draw(t, "attempt")
		rnd := fixed(rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "rnd"))

		d := p.Delay(attempt, rnd)
		require.GreaterOrEqual(t, d, p.Min)
		require.LessOrEqual(t, d, max(p.Min, p.Max))
		require.LessOrEqual(t, d, p.Delay(attempt+1, rnd))
		require.Equal(t, p.Min, p.Delay(attempt, fixed(0)))
	})
}

func TestJitter_CoversTheWholeRangeUpToTheCeiling(t *testing.T) {
	p := Policy{Min: time.Second, Max: 10 * time.Second}
	almost := fixed(math.Nextafter(1, 0))
	for attempt, ceiling := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second, p.Max, p.Max} {
		require.Equal(t, time.Second, p.Delay(attempt, fixed(0)))
		require.InDelta(t, ceiling, p.Delay(attempt, almost), float64(time.Microsecond))
	}
	require.Equal(t, p.Delay(0, almost), p.Delay(-3, almost))
}

func TestPolicy_ZeroValueHasDelays(t *testing.T) {
	for attempt := range 100 {
		d := Policy{}.Delay(attempt, nil)
		require.GreaterOrEqual(t, d, DefaultShortest)
		require.LessOrEqual(t, d, DefaultLongest)
	}
}

func TestRetry_WaitsBetweenAttemptsUntilSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Policy{Min: time.Second, Max: 4 * time.Second}
		var at []time.Time
		err := Retry(t.Context(), p, func(context.Context) error {
			if at = append(at, time.Now()); len(at) < 6 {
				return errors.New("not yet")
			}
			return nil
		})
		require.NoError(t, err)
		require.Len(t, at, 6)
		for i := 1; i < len(at); i++ {
			require.GreaterOrEqual(t, at[i].Sub(at[i-1]), time.Second)
			require.LessOrEqual(t, at[i].Sub(at[i-1]), 4*time.Second)
		}
	})
}

func TestRetry_EndsAtOnceWithItsContextAndSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start, down := time.Now(), errors.New("database is down")

		err := Retry(ctx, Policy{Min: 7 * time.Second, Max: time.Hour}, func(context.Context) error { return down })
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, down)
		require.Equal(t, time.Minute, time.Since(start))
	})
}

func TestRetry_DoesNotStartUnderAnEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Retry(ctx, Policy{}, func(context.Context) error {
		t.Error("op ran")
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
}

func TestPermanent_StopsEveryRetry(t *testing.T) {
	bad := errors.New("bad credential")
	attempts := 0
	err := Retry(t.Context(), Policy{}, func(ctx context.Context) error {
		return Retry(ctx, Policy{}, func(context.Context) error {
			attempts++
			return fmt.Errorf("join: %w", Permanent(bad))
		})
	})
	require.ErrorIs(t, err, bad)
	require.EqualError(t, err, "join: bad credential")
	require.Equal(t, 1, attempts)
	require.NoError(t, Permanent(nil))
}

type busyError time.Duration

func (e busyError) Error() string             { return "busy" }
func (e busyError) RetryAfter() time.Duration { return time.Duration(e) }

func TestRetry_WaitsAsLongAsTheServerAsks(t *testing.T) {
	for delay, least := range map[time.Duration]time.Duration{
		time.Minute:  time.Minute,
		-time.Minute: 0,
	} {
		synctest.Test(t, func(t *testing.T) {
			p := Policy{Min: time.Second, Max: 2 * time.Second}
			start, attempts := time.Now(), 0
			require.NoError(t, Retry(t.Context(), p, func(context.Context) error {
				if attempts++; attempts == 1 {
					return fmt.Errorf("report: %w", busyError(delay))
				}
				return nil
			}))
			require.GreaterOrEqual(t, time.Since(start), least+time.Second)
			require.LessOrEqual(t, time.Since(start), least+2*time.Second)
		})
	}
}

func TestRest_IsAMultipleWithinItsBounds(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0:                     20 * time.Millisecond,
		time.Millisecond:      20 * time.Millisecond,
		10 * time.Millisecond: 100 * time.Millisecond,
		time.Second:           200 * time.Millisecond,
	} {
		require.Equal(t, want, Rest(took, 10, 20*time.Millisecond, 200*time.Millisecond), took)
	}
}

func TestSleep_EndsEarlyWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		require.NoError(t, Sleep(ctx, 500*time.Millisecond))
		require.ErrorIs(t, Sleep(ctx, time.Hour), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
	})
}
