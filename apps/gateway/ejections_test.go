package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// A request that finds an instance broken does not wait for the log.
func TestEjections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l, err := newEjections(slog.New(slog.NewTextHandler(&out, nil)), prometheus.NewRegistry())
		require.NoError(t, err)
		for range 2 * ejectionLines { // Run does not log them yet
			l.countEjection(upstream.Ejection{InstanceID: "ins_1", Ejected: true, Reason: "refused"})
		}
		require.Equal(t, float64(2*ejectionLines), testutil.ToFloat64(l.counter))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		synctest.Wait()
		require.Equal(t, ejectionLines, bytes.Count(out.Bytes(), []byte("instance ejected")))
		l.countEjection(upstream.Ejection{InstanceID: "ins_1"})
		synctest.Wait()
		require.Contains(t, out.String(), `msg="instance is back" instance_id=ins_1`)
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}
