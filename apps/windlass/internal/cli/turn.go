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

// turnPatience bounds all waits of a call for its turn.
const turnPatience = time.Minute

// waitForTurn repeats a call that the workspace's rate of starts refused, when the rate allows it. The
// repeated request has the same idempotency key. A call that must wait for longer than turnPatience fails
// with the refusal.
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
				// The random part spreads clients that were given the same time.
				wait += time.Duration(rand.Int64N(int64(wait) + 1))
				if backoff.Sleep(ctx, wait) != nil {
					return resp, err
				}
				left -= min(wait, left)
			}
		}
	}
}

// turnAfter returns how long to wait before the call is repeated. It returns 0 for an answer, and for an
// error that waiting does not mend.
func turnAfter(err error) time.Duration {
	detail := rpc.DetailOf(err)
	if detail.GetReason() != windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED {
		return 0
	}
	return time.Duration(detail.GetLimit().GetRetryAfterMs()) * time.Millisecond
}
