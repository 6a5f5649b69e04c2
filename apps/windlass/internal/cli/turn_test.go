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

func limited(after time.Duration) error {
	return rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED,
		Limit:  &windlassv1.LimitDetail{RetryAfterMs: after.Milliseconds()},
	}, "too fast")
}

func TestTurn_IsAwaitedButNotForever(t *testing.T) {
	for name, c := range map[string]struct {
		answers []error
		calls   int
		passes  bool
		within  time.Duration
	}{
		"it comes":             {[]error{limited(time.Second), limited(2 * time.Second), nil}, 3, true, 6 * time.Second},
		"it is too far away":   {[]error{limited(2 * time.Minute)}, 1, false, 0},
		"it never comes":       {[]error{limited(20 * time.Second)}, 0, false, 80 * time.Second},
		"it is something else": {[]error{errors.New("no such app")}, 1, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said strings.Builder
				a := &app{Config: Config{Stderr: &said}}
				calls := 0
				call := a.waitForTurn()(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
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
