package hold

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	total *prometheus.CounterVec
	start *prometheus.HistogramVec
	// ofApps lists the metrics above. forgetApp drops their series of a deleted app.
	ofApps []vector
}

// vector is a metric with labels.
type vector interface {
	prometheus.Collector
	DeletePartialMatch(labels prometheus.Labels) int
}

// startBuckets go from an engine that starts at once to weights that are loaded for an hour.
var startBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600}

// These are the values of the label outcome of windlass_gateway_holds_total.
const (
	outcomeHeld     = "held"
	outcomeReleased = "released"
	outcomeRefused  = "refused"
)

func newMetrics(r prometheus.Registerer, counts func() []count) (*metrics, error) {
	app := []string{"app_id", "app"}
	m := &metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_holds_total", Help: "Requests for apps at zero: held, of those released to an instance, and refused because too many were held.",
		}, append([]string{"outcome"}, app...)),
		start: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "windlass_gateway_cold_start_seconds", Help: "From the first request that waited for an app at zero to the first that got an instance.", Buckets: startBuckets,
		}, app),
	}
	m.ofApps = []vector{m.total, m.start}
	err := r.Register(heldCollector{counts})
	for _, v := range m.ofApps {
		err = errors.Join(err, r.Register(v))
	}
	return m, err
}

func (m *metrics) countOutcome(outcome, id, name string) {
	m.total.WithLabelValues(outcome, id, name).Inc()
}

func (m *metrics) observeStart(id, name string, took time.Duration) {
	m.start.WithLabelValues(id, name).Observe(took.Seconds())
}

func (m *metrics) forgetApp(id string) {
	for _, v := range m.ofApps {
		v.DeletePartialMatch(prometheus.Labels{"app_id": id})
	}
}

// heldCollector reads the counts at each scrape.
type heldCollector struct{ counts func() []count }

var heldDesc = prometheus.NewDesc("windlass_gateway_held", "Requests that wait for an app at zero.", []string{"app_id", "app"}, nil)

func (c heldCollector) Describe(ch chan<- *prometheus.Desc) { ch <- heldDesc }

func (c heldCollector) Collect(ch chan<- prometheus.Metric) {
	for _, n := range c.counts() {
		ch <- prometheus.MustNewConstMetric(heldDesc, prometheus.GaugeValue, float64(n.held), n.appID, n.name)
	}
}
