package bare

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// callRate calls do from a number of goroutines for the window, and returns the calls per second. i counts the
// calls of all goroutines.
func callRate(ctx context.Context, window time.Duration, goroutines int, do func(ctx context.Context, i int64) error) (float64, error) {
	var next atomic.Int64
	var done atomic.Int64
	var mu sync.Mutex
	var failed error
	begin := time.Now()
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for time.Since(begin) < window && ctx.Err() == nil {
				if err := do(ctx, next.Add(1)-1); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if failed == nil {
		failed = context.Cause(ctx)
	}
	return float64(done.Load()) / time.Since(begin).Seconds(), failed
}
