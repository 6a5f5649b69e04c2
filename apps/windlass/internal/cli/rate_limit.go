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

// rateLimitPatience limits how long a call waits in all its tries. Only the random part of the last wait may exceed
// the limit.
const rateLimitPatience = time.Minute

// retryRateLimited repeats a call that was refused because of the workspace's rate of starts, after the time that the
// refusal names. The repeated request has the same idempotency key. A call that would have to wait for longer
// than rateLimitPatience fails with the refusal.
func (a *app) retryRateLimited() connect.UnaryInterceptorFunc {
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			for left := rateLimitPatience; ; {
				resp, err := next(ctx, req)
				wait := retryAfter(err)
				if wait == 0 || wait > left {
					return resp, err
				}
				if left == rateLimitPatience {
					a.infof("The workspace has reached its rate of starts: trying again for up to %s.", rateLimitPatience)
				}
				// The random part spreads the calls of clients that got the same time.
				wait += time.Duration(rand.Int64N(int64(wait) + 1))
				if backoff.Sleep(ctx, wait) != nil {
					return resp, err
				}
				left -= min(wait, left)
			}
		}
	}
}

// retryAfter returns how long to wait before the call is repeated. It returns 0 for an answer, and for an
// error that waiting does not mend.
func retryAfter(err error) time.Duration {
	detail := rpc.DetailOf(err)
	if detail.GetReason() != windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED {
		return 0
	}
	return time.Duration(detail.GetLimit().GetRetryAfterMs()) * time.Millisecond
}
