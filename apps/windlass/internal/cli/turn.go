package cli

import (
	"context"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// turnPatience is how long a command waits for its turn in all.
const turnPatience = time.Minute

// waitForTurn repeats a call that the workspace's rate of starts did not allow yet,
// when it does: the same request, so with the same idempotency key. A call that has to
// wait for longer than that fails with what it was told.
func (a *app) waitForTurn() connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			for left := turnPatience; ; {
				resp, err := next(ctx, req)
				wait := turnAfter(err)
				if wait == 0 || wait > left {
					return resp, err
				}
				if left == turnPatience {
					a.infof("The workspace starts work faster than it may: waiting for its turn, up to %s.", turnPatience)
				}
				// Some more, at random: other clients got the same time.
				wait += time.Duration(rand.Int64N(int64(wait) + 1))
				if backoff.Sleep(ctx, wait) != nil {
					return resp, err
				}
				left -= min(wait, left)
			}
		}
	}
}

// turnAfter is how long to wait before the call is made again, 0 for an answer or an
// error that time alone does not mend.
func turnAfter(err error) time.Duration {
	detail := rpc.DetailOf(err)
	if detail.GetReason() != windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED {
		return 0
	}
	return time.Duration(detail.GetLimit().GetRetryAfterMs()) * time.Millisecond
}
