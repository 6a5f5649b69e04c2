// Package backoff delays attempts, so that a failed server is not overloaded, and so that many clients that
// failed together do not return together.
//
// The delay before each attempt is drawn from the whole range between a fixed floor and a ceiling that
// doubles (full jitter). With only a little jitter, a thousand agents that lost one control plane would return
// in waves. The floor prevents a hot loop after an unlucky draw.
//
//	attempt      0        1        2       ...
//	range     [m, 2m)  [m, 4m)  [m, 8m)   ... [m, Max)      m = Min
package backoff

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Defaults of a Policy. They are short enough to hide a short outage, and long enough that a thousand peers
// of a restarted server return at tens per second.
const (
	DefaultShortest = 200 * time.Millisecond
	DefaultLongest  = 30 * time.Second
)

// Policy limits delays. The zero value means DefaultShortest to DefaultLongest.
type Policy struct {
	// Min is the shortest delay, and half of the first range's end. Default: DefaultShortest.
	Min time.Duration
	// Max is the limit of all ranges. A value below Min means Min. Default: DefaultLongest.
	Max time.Duration
}

// Delay returns the delay after a failed attempt. The first attempt is 0, and negative numbers count as 0.
// rnd returns numbers in [0, 1). Default: rand.Float64. The delay is in [Min, Max]. For the same value of
// rnd, the delay never falls as attempt grows.
func (p Policy) Delay(attempt int, rnd func() float64) time.Duration {
	if rnd == nil {
		rnd = rand.Float64
	}
	floor, ceiling := p.boundsOf(attempt)
	return floor + time.Duration(rnd()*float64(ceiling-floor))
}

func (p Policy) boundsOf(attempt int) (floor, ceiling time.Duration) {
	floor, limit := p.Min, p.Max
	if floor <= 0 {
		floor = DefaultShortest
	}
	if limit <= 0 {
		limit = DefaultLongest
	}
	limit = max(limit, floor)

	ceiling = floor
	for range max(attempt, 0) + 1 {
		if ceiling > limit/2 { // doubling would pass the limit, or overflow
			return floor, limit
		}
		ceiling *= 2
	}
	return floor, ceiling
}

// Retry runs op until it succeeds, fails with a Permanent error, or ctx ends.
//
// Between attempts it waits for the policy's delay. If the error (or one it wraps) has a method RetryAfter()
// time.Duration, it waits for that time plus the policy's delay, whose jitter keeps callers apart.
//
// It returns op's permanent error. If ctx ended, it returns an error that wraps the context's error and op's
// latest error.
func Retry(ctx context.Context, p Policy, op func(context.Context) error) error {
	var last error
	for attempt := 0; ; attempt++ {
		if ctx.Err() != nil {
			return endError(ctx, attempt, last)
		}
		err := op(ctx)
		if err == nil {
			return nil
		}
		if _, stop := errors.AsType[*permanentError](err); stop {
			return err
		}
		last = err
		if Sleep(ctx, retryAfter(err)+p.Delay(attempt, nil)) != nil {
			return endError(ctx, attempt+1, last)
		}
	}
}

// Rest returns the pause after a piece of work: took multiplied by times, between least and
// most. Within these limits, repeated work takes a fixed share of the time, even if its cost
// grows with the data.
func Rest(took time.Duration, times int, least, most time.Duration) time.Duration {
	return min(max(time.Duration(times)*took, least), most)
}

// Sleep waits for d, or returns the context's error as soon as ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Permanent marks an error for which Retry makes no other attempt. The mark holds if the error is wrapped,
// and for every Retry around this one. The error's text is not changed. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }

func (e *permanentError) Unwrap() error { return e.err }

func retryAfter(err error) time.Duration {
	var told interface{ RetryAfter() time.Duration }
	if !errors.As(err, &told) {
		return 0
	}
	return max(told.RetryAfter(), 0)
}

func endError(ctx context.Context, attempts int, last error) error {
	if last == nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w after %d attempts: %w", ctx.Err(), attempts, last)
}
