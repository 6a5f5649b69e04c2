package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// rateLimited returns the refusal of a call that may be repeated after a time.
func rateLimited(after time.Duration) error {
	return rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED,
		Limit:  &windlassv1.LimitDetail{RetryAfterMs: after.Milliseconds()},
	}, "too fast")
}

func TestRateLimit_WaitIsLimited(t *testing.T) {
	for name, c := range map[string]struct {
		answers []error
		calls   int
		passes  bool
		within  time.Duration
	}{
		"the rate allows it":   {[]error{rateLimited(time.Second), rateLimited(2 * time.Second), nil}, 3, true, 6 * time.Second},
		"the wait is too long": {[]error{rateLimited(2 * time.Minute)}, 1, false, 0},
		"it is refused again":  {[]error{rateLimited(20 * time.Second)}, 0, false, 80 * time.Second},
		"it is another error":  {[]error{errors.New("no such app")}, 1, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said strings.Builder
				a := &app{Config: Config{Stderr: &said}}
				calls := 0
				call := a.retryRateLimited()(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
					calls++
					return nil, c.answers[min(calls, len(c.answers))-1]
				})
				begin := time.Now()
				_, err := call(t.Context(), connect.NewRequest(&windlassv1.DeployRequest{}))
				require.LessOrEqual(t, time.Since(begin), c.within)
				require.Equal(t, c.passes, err == nil)
				if c.calls > 0 {
					require.Equal(t, c.calls, calls)
				}
				require.Equal(t, calls > 1, strings.Count(said.String(), "\n") == 1, "it says once that it waits")
			})
		})
	}
}
