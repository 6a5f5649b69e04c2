package proxy

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/table"
	"github.com/windlass-run/windlass/apps/gateway/internal/traffic"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

func TestMetrics_OutliveTheirDeploymentByOneSweep(t *testing.T) {
	routes := table.New(upstream.Config{Now: time.Now, Random: rand.Uint64, Ejected: func(upstream.Ejection) {}, Drained: func(string) {}})
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry, routes, &traffic.Traffic{})
	require.NoError(t, err)
	spec := upstream.Spec{
		AppID: "app_1", AppName: "echo", Hosts: []string{"echo.local"}, Policy: upstream.DefaultPolicy(),
		Targets: []upstream.TargetSpec{{DeploymentID: "dep_1", Version: 1, Weight: 1}},
	}
	require.NoError(t, routes.Put(spec))
	m.countEnd(&exchange{route: routes.Lookup("echo.local"), spec: &spec, deployment: "dep_1", version: 1, status: 200}, time.Second)
	count := func() int {
		families, err := registry.Gather()
		require.NoError(t, err)
		n := 0
		for _, f := range families {
			if f.GetName() == "windlass_gateway_requests_total" {
				n = len(f.Metric)
			}
		}
		return n
	}
	m.sweepSeries(routes)
	m.sweepSeries(routes)
	require.Equal(t, 1, count(), "the deployment has a route")
	routes.Remove("app_1")
	m.sweepSeries(routes)
	require.Equal(t, 1, count(), "a scrape may not have read the last value")
	m.sweepSeries(routes)
	require.Zero(t, count())
}

// A deployment may get legs only of requests that another deployment answered in the end.
func TestMetrics_OfLegsAreSwept(t *testing.T) {
	routes := table.New(upstream.Config{Now: time.Now, Random: rand.Uint64, Ejected: func(upstream.Ejection) {}, Drained: func(string) {}})
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry, routes, &traffic.Traffic{})
	require.NoError(t, err)
	x := &exchange{spec: &upstream.Spec{AppID: "app_1", AppName: "echo"}}
	m.countLeg(x, &upstream.Lease{DeploymentID: "dep_1", Version: 1}, legEnd{status: 500})
	count := func() (n int) {
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "windlass_gateway_leg_requests_total" {
				n += len(f.Metric)
			}
		}
		return n
	}
	require.Equal(t, 1, count())
	m.sweepSeries(routes)
	m.sweepSeries(routes)
	require.Zero(t, count())
}

// Requests of an app may fail, be handed over or be refused although no deployment got a request.
func TestMetrics_OutliveAnAppWithoutRequestsByOneSweep(t *testing.T) {
	routes := table.New(upstream.Config{Now: time.Now, Random: rand.Uint64, Ejected: func(upstream.Ejection) {}, Drained: func(string) {}})
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry, routes, &traffic.Traffic{})
	require.NoError(t, err)
	spec := func(id string) *upstream.Spec {
		return &upstream.Spec{AppID: id, AppName: "echo", Hosts: []string{id + ".local"}, Policy: upstream.DefaultPolicy()}
	}
	for _, id := range []string{"app_1", "app_2"} {
		require.NoError(t, routes.Put(*spec(id)))
		x := &exchange{route: routes.Lookup(id + ".local"), spec: spec(id), status: 503, failure: failNoInstance}
		m.countRetry(x)
		m.handedOver(x, "eu", "failover")
		m.countEnd(x, time.Second)
	}
	m.countEnd(&exchange{spec: nowhere, status: 404, failure: failNoRoute}, time.Second)
	// of counts the counters of an app. Each app has four: requests, failures, retries and handed over.
	of := func(app string) int {
		families, err := registry.Gather()
		require.NoError(t, err)
		n := 0
		for _, f := range families {
			for _, metric := range f.Metric {
				for _, l := range metric.Label {
					if l.GetName() == "app_id" && l.GetValue() == app && metric.Counter != nil {
						n++
					}
				}
			}
		}
		return n
	}
	require.Equal(t, 4, of("app_1"))
	routes.Remove("app_1")
	m.sweepSeries(routes)
	require.Equal(t, 4, of("app_1"), "a scrape may not have read the last value")
	m.sweepSeries(routes)
	require.Zero(t, of("app_1"))
	require.Equal(t, 4, of("app_2"), "app_2 has the same name, but another id")
	require.Equal(t, 1, of(""), "requests for hosts without a route are counted in one series")
}

func TestMetrics_EachIsRegisteredAndSwept(t *testing.T) {
	routes := table.New(upstream.Config{Now: time.Now, Random: rand.Uint64, Ejected: func(upstream.Ejection) {}, Drained: func(string) {}})
	m, err := newMetrics(prometheus.NewRegistry(), routes, &traffic.Traffic{})
	require.NoError(t, err)
	listed := map[uintptr]bool{}
	for _, v := range slices.Concat(m.ofDeployments, m.ofApps) {
		listed[reflect.ValueOf(v).Pointer()] = true
	}
	fields := reflect.ValueOf(m).Elem()
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.Pointer && f.Type().Implements(reflect.TypeFor[vector]()) {
			require.True(t, listed[f.Pointer()], "%s is in ofDeployments or ofApps", fields.Type().Field(i).Name)
		}
	}
}

// A gateway may have thousands of deployments, and each deployment answers with few statuses.
func TestMetrics_OfADeploymentAreSmallAndHaveEveryStatus(t *testing.T) {
	require.Less(t, unsafe.Sizeof(figures{}), uintptr(256))
	routes := table.New(upstream.Config{Now: time.Now, Random: rand.Uint64, Ejected: func(upstream.Ejection) {}, Drained: func(string) {}})
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry, routes, &traffic.Traffic{})
	require.NoError(t, err)
	f := m.figuresOf(series{appLabels{"app_1", "echo"}, "dep_1", 1})
	const each = 50
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for range each {
				for status := 100; status < 1000; status += 10 { // more than are kept
					f.counterOf(status).Inc()
				}
			}
		})
	}
	callers.Wait()
	require.Len(t, *f.answered.Load(), maxAnswered)
	families, err := registry.Gather()
	require.NoError(t, err)
	counted := 0
	for _, family := range families {
		if family.GetName() != "windlass_gateway_requests_total" {
			continue
		}
		for _, metric := range family.Metric {
			require.InDelta(t, 4*each, metric.Counter.GetValue(), 0)
			counted++
		}
	}
	require.Equal(t, 90, counted)
}

func BenchmarkStatus(b *testing.B) {
	routes := table.New(upstream.Config{Now: time.Now, Random: rand.Uint64, Ejected: func(upstream.Ejection) {}, Drained: func(string) {}})
	m, err := newMetrics(prometheus.NewRegistry(), routes, &traffic.Traffic{})
	require.NoError(b, err)
	f := m.figuresOf(series{appLabels{"app_1", "echo"}, "dep_1", 1})
	for _, status := range []int{200, 404, 499, 503} {
		f.counterOf(status).Inc()
	}
	b.ReportAllocs()
	for b.Loop() {
		f.counterOf(503)
	}
}
