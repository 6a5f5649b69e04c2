package hold

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	total *prometheus.CounterVec
	start *prometheus.HistogramVec
	// byApp has the metrics above. All have the label app_id, by which forgetApp drops the series of an app.
	byApp []metricVec
}

// metricVec is a metric with labels.
type metricVec interface {
	prometheus.Collector
	DeletePartialMatch(labels prometheus.Labels) int
}

// startBuckets are in seconds. They begin with engines that start at once, and end with models that load for an
// hour.
var startBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600}

// These are the values of the label outcome of windlass_gateway_holds_total.
const (
	outcomeHeld     = "held"
	outcomeReleased = "released"
	outcomeRefused  = "refused"
)

func newMetrics(r prometheus.Registerer, counts func() []count) (*metrics, error) {
	appLabels := []string{"app_id", "app"}
	m := &metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_holds_total", Help: "Requests for apps at zero, by outcome. held: waited. released: a held request got an instance. refused: too many requests waited.",
		}, append([]string{"outcome"}, appLabels...)),
		start: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "windlass_gateway_cold_start_seconds", Help: "Time from the first request that waited for an app at zero until the first request got an instance.", Buckets: startBuckets,
		}, appLabels),
	}
	m.byApp = []metricVec{m.total, m.start}
	err := r.Register(heldCollector{counts})
	for _, v := range m.byApp {
		err = errors.Join(err, r.Register(v))
	}
	return m, err
}

func (m *metrics) countOutcome(outcome, id, name string) {
	m.total.WithLabelValues(outcome, id, name).Inc()
}

func (m *metrics) observeStart(id, name string, startDuration time.Duration) {
	m.start.WithLabelValues(id, name).Observe(startDuration.Seconds())
}

func (m *metrics) forgetApp(id string) {
	for _, v := range m.byApp {
		v.DeletePartialMatch(prometheus.Labels{"app_id": id})
	}
}

// heldCollector collects the metric windlass_gateway_held. It reads the counts at each scrape.
type heldCollector struct{ counts func() []count }

var heldDesc = prometheus.NewDesc("windlass_gateway_held", "Requests that wait for an app at zero.", []string{"app_id", "app"}, nil)

func (c heldCollector) Describe(ch chan<- *prometheus.Desc) { ch <- heldDesc }

func (c heldCollector) Collect(ch chan<- prometheus.Metric) {
	for _, app := range c.counts() {
		ch <- prometheus.MustNewConstMetric(heldDesc, prometheus.GaugeValue, float64(app.waiting), app.appID, app.name)
	}
}
