package logrelay

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	bytes prometheus.Counter
	lost  *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer, feeds func() float64) (*metrics, error) {
	m := &metrics{
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "windlass_log_bytes_total", Help: "Bytes of lines of logs that agents answered with.",
		}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_log_lines_lost_total",
			Help: "Lines of logs that readers were told are missing, by cause: instance (it wrote more than is sent), reader (it was slow).",
		}, []string{"cause"}),
	}
	followed := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "windlass_log_instances", Help: "Instances whose logs are followed through this process.",
	}, feeds)
	if err := errors.Join(registerer.Register(m.bytes), registerer.Register(m.lost), registerer.Register(followed)); err != nil {
		return nil, fmt.Errorf("register metrics of logs: %w", err)
	}
	return m, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
