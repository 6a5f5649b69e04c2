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
			Name: "windlass_log_bytes_total", Help: "Bytes of log lines in the answers of agents.",
		}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_log_lines_lost_total",
			Help: "Log lines that readers did not get, by cause: instance (the instance wrote more than its agent sends) or reader (the reader was too slow).",
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
