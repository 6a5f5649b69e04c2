package proxy

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/gateway/internal/table"
	"github.com/windlass-run/windlass/apps/gateway/internal/traffic"
)

// metrics are the metrics of requests, by app and deployment. An analysis of a rollout selects by the label
// windlass_deployment. Two apps of different environments or workspaces may have the same label app, but their
// labels app_id differ.
type metrics struct {
	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	firstByte  *prometheus.HistogramVec
	firstToken *prometheus.HistogramVec
	tokens     *prometheus.CounterVec
	failures   *prometheus.CounterVec
	retries    *prometheus.CounterVec
	notLoaded  *prometheus.CounterVec
	handed     *prometheus.CounterVec
	// legs, legSeconds and legRetries count the two requests of pairs, and unpaired counts the requests for completions
	// that went to a decode server alone.
	legs, legRetries, unpaired *prometheus.CounterVec
	legSeconds                 *prometheus.HistogramVec
	// ofDeployments and ofApps list the metrics above. sweepSeries drops the series of deployments and apps that have
	// no routes.
	ofDeployments, ofApps []vector

	figures sync.Map // series -> *figures
	apps    sync.Map // appLabels -> *atomic.Bool: whether the last sweep found no routes of the app
	traffic *traffic.Traffic
}

// vector is a metric with labels.
type vector interface {
	prometheus.Collector
	DeletePartialMatch(labels prometheus.Labels) int
}

// buckets go from the time of a cached answer to the time of a long generation.
var buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}

func newMetrics(r prometheus.Registerer, t *table.Table, counts *traffic.Traffic) (*metrics, error) {
	app := []string{"app_id", "app"}
	version := append(slices.Clone(app), "windlass_deployment", "version")
	m := &metrics{
		traffic: counts,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_requests_total", Help: "Requests that ended, by the status that the client got. For gRPC, code is the HTTP status with the same meaning. 499: the client went away first.",
		}, append([]string{"code"}, version...)),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "windlass_gateway_request_seconds", Help: "Time from a request's header to the last byte of its answer.", Buckets: buckets,
		}, version),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "windlass_gateway_first_byte_seconds", Help: "Time from a request's header to the header of the instance's answer, including the queue.", Buckets: buckets,
		}, version),
		firstToken: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "windlass_gateway_first_token_seconds", Help: "Time from a request's header to the first byte of the body of an answer that is a stream (text/event-stream).", Buckets: buckets,
		}, version),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_tokens_total", Help: "Tokens that answers report, by kind: prompt or completion.",
		}, append([]string{"kind"}, version...)),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_failures_total", Help: "Requests that the gateway answered itself or broke off, by the code of its error.",
		}, append([]string{"reason"}, app...)),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_retries_total", Help: "Attempts of requests after their first attempt.",
		}, app),
		notLoaded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_not_loaded_total",
			Help: "Answers with 404 of servers that do not have the requested model, by result: elsewhere (the request went to another server) or passed (the client got the answer).",
		}, append([]string{"result"}, app...)),
		handed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_handed_over_total", Help: "Requests that another region answered, by the reason why: failover, spillover, or zero.",
		}, append([]string{"region", "why"}, app...)),
		legs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_leg_requests_total", Help: "Requests to instances of pairs, by leg (prefill or decode) and by result: the status of the answer, the code of the gateway's error, or canceled if the other leg failed or the client went away.",
		}, append([]string{"leg", "result"}, version...)),
		legSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "windlass_gateway_leg_seconds", Help: "Time of a request to an instance of a pair, by leg. prefill: until the end of its answer. decode: until the first byte of its answer's body.", Buckets: buckets,
		}, append([]string{"leg"}, version...)),
		legRetries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_leg_retries_total", Help: "Attempts at another pair, by the leg that failed before: prefill, decode, or both if either may be the reason.",
		}, append([]string{"leg"}, app...)),
		unpaired: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_gateway_unpaired_total", Help: "Requests for completions of apps with pairs that went to a decode server alone, by the reason why: short, several, no_pair if no pair was in service, or refused if the prefill server refused them.",
		}, append([]string{"why"}, app...)),
	}
	m.ofDeployments = []vector{m.requests, m.duration, m.firstByte, m.firstToken, m.tokens, m.legs, m.legSeconds}
	m.ofApps = []vector{m.failures, m.retries, m.notLoaded, m.handed, m.legRetries, m.unpaired}
	err := r.Register(routesCollector{t})
	for _, v := range slices.Concat(m.ofDeployments, m.ofApps) {
		err = errors.Join(err, r.Register(v))
	}
	return m, err
}

// newPairMemoryMetrics returns the counter of requests that waited for memory. used returns the memory that is used.
func newPairMemoryMetrics(r prometheus.Registerer, used func() float64) (waits prometheus.Counter, err error) {
	waits = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "windlass_gateway_pair_memory_waits_total", Help: "Requests to pairs that waited for memory for their bodies. Those that waited in vain count in windlass_gateway_failures_total as pair_memory.",
	})
	bytes := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "windlass_gateway_pair_memory_bytes", Help: "Memory for the bodies of requests to pairs that have no answer yet. The limit is --max-pair-mib.",
	}, used)
	return waits, errors.Join(r.Register(waits), r.Register(bytes))
}

// appLabels are app_id and app.
type appLabels struct{ id, name string }

// labelsOf returns the labels of the request's app. It keeps them in m.apps, so that a sweep finds the app's series
// after the app was removed. All hosts without a route share one app with empty labels. Otherwise clients could
// create any number of series with requests for such hosts.
func (m *metrics) labelsOf(x *exchange) appLabels {
	a := appLabels{x.spec.AppID, x.spec.AppName}
	if _, known := m.apps.Load(a); !known {
		m.apps.LoadOrStore(a, new(atomic.Bool))
	}
	return a
}

func (m *metrics) countRetry(x *exchange) {
	a := m.labelsOf(x)
	m.retries.WithLabelValues(a.id, a.name).Inc()
}

func (m *metrics) countNotLoaded(x *exchange, result string) {
	a := m.labelsOf(x)
	m.notLoaded.WithLabelValues(result, a.id, a.name).Inc()
}

func (m *metrics) handedOver(x *exchange, region, why string) {
	a := m.labelsOf(x)
	m.handed.WithLabelValues(region, why, a.id, a.name).Inc()
}

func (m *metrics) countEnd(x *exchange, took time.Duration) {
	status := x.outcomeStatus()
	if status == 0 {
		status = statusClientGone
	}
	if x.route != nil {
		if x.deployment == "" {
			a := m.labelsOf(x)
			m.requests.WithLabelValues(strconv.Itoa(status), a.id, a.name, "", "").Inc()
		} else {
			f := m.figuresOf(series{appLabels{x.spec.AppID, x.spec.AppName}, x.deployment, x.version})
			f.counterOf(status).Inc()
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
	x.load.End()
	if x.failure != nil {
		a := m.labelsOf(x)
		m.failures.WithLabelValues(x.failure.code, a.id, a.name).Inc()
	}
}

// series identifies the series of a deployment.
type series struct {
	app        appLabels
	deployment string
	version    int32
}

// figures are the metrics of a series. They are kept because finding a metric by its labels costs more than
// counting.
type figures struct {
	duration, firstByte, firstToken prometheus.Observer
	prompt, completion              prometheus.Counter
	requests                        *prometheus.CounterVec // by status
	// answered has the counters of the statuses that came first, in that order. A short list is enough, because a
	// deployment answers with few statuses, and the most frequent one usually comes first. The list is replaced,
	// and not changed.
	answered atomic.Pointer[[]answered]
	// missed is whether the last sweep found no route to the deployment.
	missed atomic.Bool
}

type answered struct {
	status int
	prometheus.Counter
}

// maxAnswered limits the length of figures.answered, because an instance may answer with arbitrary statuses.
const maxAnswered = 16

func (m *metrics) figuresOf(k series) *figures {
	if found, ok := m.figures.Load(k); ok {
		return found.(*figures) //nolint:forcetypeassert // nothing else is stored
	}
	version := strconv.Itoa(int(k.version))
	found, _ := m.figures.LoadOrStore(k, &figures{
		duration:   m.duration.WithLabelValues(k.app.id, k.app.name, k.deployment, version),
		firstByte:  m.firstByte.WithLabelValues(k.app.id, k.app.name, k.deployment, version),
		firstToken: m.firstToken.WithLabelValues(k.app.id, k.app.name, k.deployment, version),
		prompt:     m.tokens.WithLabelValues("prompt", k.app.id, k.app.name, k.deployment, version),
		completion: m.tokens.WithLabelValues("completion", k.app.id, k.app.name, k.deployment, version),
		requests: m.requests.MustCurryWith(prometheus.Labels{
			"app_id": k.app.id, "app": k.app.name, "windlass_deployment": k.deployment, "version": version,
		}),
	})
	return found.(*figures) //nolint:forcetypeassert // nothing else is stored
}

func (f *figures) counterOf(code int) prometheus.Counter {
	var known []answered
	before := f.answered.Load()
	if before != nil {
		known = *before
	}
	for i := range known {
		if known[i].status == code {
			return known[i].Counter
		}
	}
	c := f.requests.WithLabelValues(strconv.Itoa(code))
	if len(known) < maxAnswered {
		next := append(slices.Clone(known), answered{code, c})
		f.answered.CompareAndSwap(before, &next) // if another goroutine changed the list, the next answer adds this status
	}
	return c
}

// sweepSeries drops the series of deployments and apps that have no route now and had none at the last sweep. Since
// that sweep, scrapes have read the series, and their requests have ended.
func (m *metrics) sweepSeries(t *table.Table) {
	// The counts of requests for hosts without a route stay.
	deployments, apps := map[string]bool{}, map[appLabels]bool{{}: true}
	for _, spec := range t.Specs() {
		apps[appLabels{spec.AppID, spec.AppName}] = true
		for _, target := range spec.Targets {
			deployments[target.DeploymentID] = true
		}
	}
	gone := func(missed *atomic.Bool, routed bool) bool { return missed.Swap(!routed) && !routed }
	m.figures.Range(func(key, value any) bool {
		k, f := key.(series), value.(*figures) //nolint:forcetypeassert // nothing else is stored
		if gone(&f.missed, deployments[k.deployment]) {
			m.figures.Delete(k)
			for _, v := range m.ofDeployments {
				v.DeletePartialMatch(prometheus.Labels{"windlass_deployment": k.deployment})
			}
			m.traffic.Forget(k.deployment)
		}
		return true
	})
	m.apps.Range(func(key, value any) bool {
		a, missed := key.(appLabels), value.(*atomic.Bool) //nolint:forcetypeassert // nothing else is stored
		if gone(missed, apps[a]) {
			m.apps.Delete(a)
			labels := prometheus.Labels{"app_id": a.id, "app": a.name}
			for _, v := range m.ofApps {
				v.DeletePartialMatch(labels)
			}
			// This drops the series without a deployment. Series with a deployment are dropped with the deployment.
			labels["windlass_deployment"] = ""
			m.requests.DeletePartialMatch(labels)
		}
		return true
	})
}

// routesCollector reads the table at each scrape. It has series only for apps and deployments with routes, so the
// series end with the routes.
type routesCollector struct{ table *table.Table }

var (
	inFlightDesc = prometheus.NewDesc("windlass_gateway_in_flight",
		"Requests under way at instances that have a route, by version.", []string{"app_id", "app", "windlass_deployment", "version"}, nil)
	queueDesc = prometheus.NewDesc("windlass_gateway_queue",
		"Requests that wait for an instance, by app. There is no version, because a request waits before its version is chosen.", []string{"app_id", "app"}, nil)
	partDesc = prometheus.NewDesc("windlass_gateway_instance_part",
		"Share of each ready instance in the requests of its version, relative to the mean share, which is 1. Only for weighted balancing.",
		[]string{"app_id", "app", "windlass_deployment", "version", "instance_id"}, nil)
	routesDesc = prometheus.NewDesc("windlass_gateway_routes", "Apps that have routes at this gateway.", nil, nil)
)

func (c routesCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- inFlightDesc
	ch <- queueDesc
	ch <- partDesc
	ch <- routesDesc
}

func (c routesCollector) Collect(ch chan<- prometheus.Metric) {
	here := 0
	for _, r := range c.table.Routes() {
		spec := r.Now()
		if spec == nil {
			continue
		}
		if !spec.Elsewhere {
			here++
		}
		ch <- prometheus.MustNewConstMetric(queueDesc, prometheus.GaugeValue, float64(r.Waiting()), spec.AppID, spec.AppName)
		for _, d := range r.InFlight() {
			ch <- prometheus.MustNewConstMetric(inFlightDesc, prometheus.GaugeValue, float64(d.Requests),
				spec.AppID, spec.AppName, d.DeploymentID, strconv.Itoa(int(d.Version)))
		}
		for _, p := range r.Parts() {
			ch <- prometheus.MustNewConstMetric(partDesc, prometheus.GaugeValue, p.Part,
				spec.AppID, spec.AppName, p.DeploymentID, strconv.Itoa(int(p.Version)), p.InstanceID)
		}
	}
	ch <- prometheus.MustNewConstMetric(routesDesc, prometheus.GaugeValue, float64(here))
}
