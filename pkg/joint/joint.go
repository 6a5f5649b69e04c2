// Package joint is for work that is done once for many who wait for it.
package joint

import (
	"context"
	"sync/atomic"
	"time"
)

// Context has the values of the first of the contexts, and ends when all of them have, after
// the timeout, or with cancel: what is done for many goes on without those who leave, and not
// without any. There has to be one.
func Context(timeout time.Duration, of ...context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithTimeout(context.WithoutCancel(of[0]), timeout)
	var here atomic.Int64
	here.Store(int64(len(of)))
	stops := make([]func() bool, len(of))
	for i, one := range of {
		stops[i] = context.AfterFunc(one, func() {
			if here.Add(-1) == 0 {
				end()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		end()
	}
}
