package artifact

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	fetches, received *prometheus.CounterVec
	bytes             prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		fetches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_agent_artifact_fetches_total",
			Help: "Ended fetches of artifacts of models, by source (https, s3, oci) and result: fetched, refused (the source answered with an error status, or the operator " +
				"does not allow its address), content (wrong digest, or content that cannot be used), no_room, canceled or failed.",
		}, []string{"source", "result"}),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_agent_artifact_received_bytes_total", Help: "Bytes of artifacts of models that were received, by source.",
		}, []string{"source"}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "windlass_agent_artifact_disk_bytes", Help: "Size of the files of models on this host, with those of running fetches.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.fetches, m.received, m.bytes} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// countEnded counts a fetch that has ended.
func (m *metrics) countEnded(source string, err error) {
	result := "failed"
	var status *statusError
	var refused *refusedError
	var wrong *digestError
	var invalid *contentError
	switch {
	case err == nil:
		result = "fetched"
	case errors.As(err, &status), errors.As(err, &refused):
		result = "refused"
	case errors.As(err, &wrong), errors.As(err, &invalid):
		result = "content"
	case errors.Is(err, errNoRoom):
		result = "no_room"
	case errors.Is(err, context.Canceled):
		result = "canceled"
	}
	m.fetches.WithLabelValues(source, result).Inc()
}
