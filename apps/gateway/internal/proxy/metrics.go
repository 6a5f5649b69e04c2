package proxy

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/gateway/internal/table"
	"github.com/windlass-run/windlass/apps/gateway/internal/traffic"
)

// metrics of the requests, by app and deployment. The label windlass_deployment is the one
// that an analysis of a rollout selects by.
type metrics struct {
	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	firstByte  *prometheus.HistogramVec
	firstToken *prometheus.HistogramVec
	tokens     *prometheus.CounterVec
	failures   *prometheus.CounterVec
	retries    *prometheus.CounterVec
	handed     *prometheus.CounterVec
	figures    sync.Map // series -> *figures
	traffic    *traffic.Traffic
}

// buckets from what a cached answer takes to what a long generation does.
var buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}

func newMetrics(r prometheus.Registerer, t *table.Table, counts *traffic.Traffic) (*metrics, error) {
	version := []string{"app", "windlass_deployment", "version"}
	m := &metrics{
		traffic: counts,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_requests_total", Help: "Requests that ended, by what the client got; code 499: the client went away first.",
		}, append([]string{"code"}, version...)),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "windlass_gateway_request_seconds", Help: "From a request's header to the last byte of its answer.", Buckets: buckets,
		}, version),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "windlass_gateway_first_byte_seconds", Help: "From a request's header to the header of the instance's answer, the queue included.", Buckets: buckets,
		}, version),
		firstToken: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "windlass_gateway_first_token_seconds", Help: "From a request's header to the first byte of the body of an answer that streams (text/event-stream).", Buckets: buckets,
		}, version),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_tokens_total", Help: "Tokens that answers say they took, by kind: prompt or completion.",
		}, append([]string{"kind"}, version...)),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_failures_total", Help: "Requests that the gateway answered itself or broke off, by its code.",
		}, []string{"app", "reason"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_retries_total", Help: "Attempts after a request's first.",
		}, []string{"app"}),
		handed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_handed_over_total", Help: "Requests that another region answered, by why: failover or spillover.",
		}, []string{"app", "region", "why"}),
	}
	var err error
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.firstByte, m.firstToken, m.tokens, m.failures, m.retries, m.handed, routesCollector{t}} {
		err = errors.Join(err, r.Register(c))
	}
	return m, err
}

func (m *metrics) retried(x *exchange) { m.retries.WithLabelValues(x.spec.AppName).Inc() }

func (m *metrics) handedOver(x *exchange, region, why string) {
	m.handed.WithLabelValues(x.spec.AppName, region, why).Inc()
}

func (m *metrics) ended(x *exchange, took time.Duration) {
	status := x.status
	if status == 0 {
		status = statusClientGone
	}
	// A host that is nobody's is in no label: whoever sends them would choose how many
	// series there are.
	if x.route != nil {
		if x.deployment == "" {
			m.requests.WithLabelValues(strconv.Itoa(status), x.spec.AppName, "", "").Inc()
		} else {
			f := m.of(series{x.spec.AppName, x.deployment, x.version})
			f.status(status).Inc()
			f.duration.Observe(took.Seconds())
			if !x.firstByte.IsZero() {
				f.firstByte.Observe(x.firstByte.Sub(x.start).Seconds())
			}
			ended := traffic.Request{DeploymentID: x.deployment, Took: took, Failed: status >= 500 || x.failure != nil && x.failure.status >= 500}
			if !x.firstToken.IsZero() {
				ended.FirstToken = x.firstToken.Sub(x.start)
				f.firstToken.Observe(ended.FirstToken.Seconds())
			}
			m.traffic.Ended(ended)
			if x.used != (usage{}) {
				f.prompt.Add(float64(x.used.Prompt))
				f.completion.Add(float64(x.used.Completion))
			}
		}
	}
	if x.failure != nil {
		m.failures.WithLabelValues(x.spec.AppName, x.failure.code).Inc()
	}
}

// series of a deployment.
type series struct {
	app, deployment string
	version         int32
}

// figures of series, found once: to find one by its labels costs more than to count.
type figures struct {
	duration, firstByte, firstToken prometheus.Observer
	prompt, completion              prometheus.Counter
	requests                        *prometheus.CounterVec // by status
	byStatus                        [600]atomic.Pointer[prometheus.Counter]
	// missed: the last sweep found no route to the deployment.
	missed atomic.Bool
}

func (m *metrics) of(k series) *figures {
	if found, ok := m.figures.Load(k); ok {
		return found.(*figures) //nolint:forcetypeassert // nothing else is stored
	}
	version := strconv.Itoa(int(k.version))
	found, _ := m.figures.LoadOrStore(k, &figures{
		duration:   m.duration.WithLabelValues(k.app, k.deployment, version),
		firstByte:  m.firstByte.WithLabelValues(k.app, k.deployment, version),
		firstToken: m.firstToken.WithLabelValues(k.app, k.deployment, version),
		prompt:     m.tokens.WithLabelValues("prompt", k.app, k.deployment, version),
		completion: m.tokens.WithLabelValues("completion", k.app, k.deployment, version),
		requests: m.requests.MustCurryWith(prometheus.Labels{
			"app": k.app, "windlass_deployment": k.deployment, "version": version,
		}),
	})
	return found.(*figures) //nolint:forcetypeassert // nothing else is stored
}

func (f *figures) status(code int) prometheus.Counter {
	if code >= len(f.byStatus) {
		return f.requests.WithLabelValues(strconv.Itoa(code))
	}
	if c := f.byStatus[code].Load(); c != nil {
		return *c
	}
	c := f.requests.WithLabelValues(strconv.Itoa(code))
	f.byStatus[code].Store(&c)
	return c
}

// sweep drops the series of deployments that were not routed at the last sweep either:
// scrapes in between have had what there was to tell, and requests have ended.
func (m *metrics) sweep(t *table.Table) {
	routed, apps := map[string]bool{}, map[string]bool{}
	for _, spec := range t.Specs() {
		apps[spec.AppName] = true
		for _, target := range spec.Targets {
			routed[target.DeploymentID] = true
		}
	}
	m.figures.Range(func(key, value any) bool {
		k, f := key.(series), value.(*figures) //nolint:forcetypeassert // nothing else is stored
		switch {
		case routed[k.deployment]:
			f.missed.Store(false)
		case !f.missed.Swap(true):
		default:
			m.figures.Delete(k)
			labels := prometheus.Labels{"windlass_deployment": k.deployment}
			m.requests.DeletePartialMatch(labels)
			m.duration.DeletePartialMatch(labels)
			m.firstByte.DeletePartialMatch(labels)
			m.firstToken.DeletePartialMatch(labels)
			m.tokens.DeletePartialMatch(labels)
			m.traffic.Forget(k.deployment)
			if !apps[k.app] {
				app := prometheus.Labels{"app": k.app}
				m.requests.DeletePartialMatch(app)
				m.failures.DeletePartialMatch(app)
				m.retries.DeletePartialMatch(app)
				m.handed.DeletePartialMatch(app)
			}
		}
		return true
	})
}

// routesCollector reads what is now when it is asked.
type routesCollector struct{ table *table.Table }

var (
	inFlightDesc = prometheus.NewDesc("windlass_gateway_in_flight", "Requests under way at instances.", []string{"app"}, nil)
	queueDesc    = prometheus.NewDesc("windlass_gateway_queue", "Requests that wait for an instance.", []string{"app"}, nil)
	routesDesc   = prometheus.NewDesc("windlass_gateway_routes", "Apps that have routes here.", nil, nil)
)

func (c routesCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- inFlightDesc
	ch <- queueDesc
	ch <- routesDesc
}

func (c routesCollector) Collect(ch chan<- prometheus.Metric) {
	type sum struct{ inFlight, waiting float64 }
	// Apps of two environments may share a name.
	sums := map[string]sum{}
	here := 0
	for _, r := range c.table.Routes() {
		spec, ok := r.Spec()
		if !ok {
			continue
		}
		if !spec.Elsewhere {
			here++
		}
		s := sums[spec.AppName]
		s.inFlight += float64(r.InFlight())
		s.waiting += float64(r.Waiting())
		sums[spec.AppName] = s
	}
	for app, s := range sums {
		ch <- prometheus.MustNewConstMetric(inFlightDesc, prometheus.GaugeValue, s.inFlight, app)
		ch <- prometheus.MustNewConstMetric(queueDesc, prometheus.GaugeValue, s.waiting, app)
	}
	ch <- prometheus.MustNewConstMetric(routesDesc, prometheus.GaugeValue, float64(here))
}
