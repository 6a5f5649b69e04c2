package models

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
)

func TestManager_CountsLoadsByResult(t *testing.T) {
	run(t, "with their failures", func(h *harness) {
		h.registerer = prometheus.NewPedanticRegistry()
		h.stop()
		h.start()
		h.fail["refused"] = fmt.Errorf("%w: 400", ErrRefused)
		h.fail["unready"] = fmt.Errorf("%w: not ready", ErrNotDone)
		h.fail["broken"] = errors.New("connection reset")
		h.add("s1", "shared", 10)
		h.show()
		h.set(model("a", 1), model("refused", 1), model("unready", 1), model("broken", 1))
		h.pass(500 * time.Millisecond)
		m := h.manager.metrics
		for result, n := range map[string]float64{"loaded": 1, "refused": 1, "not_done": 1, "unreachable": 1, "timeout": 0} {
			require.InDelta(h.t, n, testutil.ToFloat64(m.loads.WithLabelValues(result)), 0, result)
		}
		require.Equal(h.t, 1, testutil.CollectAndCount(m.loadTime))
		gone := model("a", 1)
		gone.Deleted = true
		h.set(gone)
		h.settle()
		require.InDelta(h.t, 1, testutil.ToFloat64(m.unloads.WithLabelValues("unloaded")), 0)
		h.update(func() { h.crash["bad"] = true })
		h.set(model("bad", 1))
		h.settle()
		require.InDelta(h.t, 2, testutil.ToFloat64(m.deaths), 0)
	})
}
