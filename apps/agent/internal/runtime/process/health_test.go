package process

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// An engine may load for hours. The time between two checks must not grow beyond the interval.
func TestProber_ChecksAtTheIntervalWhileAnInstanceLoads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newProber(func() float64 { return 0 }, func(bool) {})
		var asked atomic.Int64
		p.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			asked.Add(1)
			return nil, errors.New("not yet")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Hour)
		defer cancel()
		p.watch(ctx, health{Path: "/", Interval: 10 * time.Second, Timeout: time.Second, Healthy: 1}, 80, false, &pulse{}, func() {})
		require.InDelta(t, 3600, asked.Load(), 60)
	})
}
