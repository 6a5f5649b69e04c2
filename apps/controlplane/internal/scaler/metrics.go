package scaler

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/pkg/scaling"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

type metrics struct {
	wanted, ready *prometheus.GaugeVec
	limited       *prometheus.GaugeVec
	// ofPlaces lists the gauges above. forget drops their series when an app is no longer scaled.
	ofPlaces  []*prometheus.GaugeVec
	decisions *prometheus.CounterVec
	delay     prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	labels := []string{"app_id", "region", "role"}
	m := &metrics{
		wanted: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "windlass_scaling_wanted_replicas", Help: "Replicas that scaling wants for an app in a region, after limits, or instances of a role of a pool.",
		}, labels),
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "windlass_scaling_ready_replicas", Help: "Replicas of a scaled app that are ready in a region, or instances of a role of a pool.",
		}, labels),
		limited: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "windlass_scaling_limited", Help: "1 while a limit keeps an app in a region from the replicas that its metrics want.",
		}, []string{"app_id", "region", "role", "limit"}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "windlass_scaling_decisions_total", Help: "Scaling decisions that were written, by outcome.",
		}, []string{"outcome"}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "windlass_scaling_delay_seconds", Help: "Time from a load report to the replicas that were written because of it.",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 12),
		}),
	}
	m.ofPlaces = []*prometheus.GaugeVec{m.wanted, m.ready, m.limited}
	for _, v := range m.ofPlaces {
		reg.MustRegister(v)
	}
	reg.MustRegister(m.decisions, m.delay)
	return m
}

// noteDecision sets the gauges to a decision. role is empty for a decision about replicas.
func (m *metrics) noteDecision(a *app, region, role string, d scaling.Decision) {
	m.wanted.WithLabelValues(a.AppID, region, role).Set(float64(d.Wanted))
	m.ready.WithLabelValues(a.AppID, region, role).Set(float64(d.Ready))
	m.limited.DeletePartialMatch(prometheus.Labels{"app_id": a.AppID, "region": region, "role": role})
	if limit := lastingLimit(d.Limit); limit != scaling.None {
		m.limited.WithLabelValues(a.AppID, region, role, string(limit)).Set(1)
	}
}

// forgetRole deletes the series of a role of an app in a region. shown is its newest decision, nil for none.
func (m *metrics) forgetRole(appID, role string, shown *windlassv1.RegionScaling) {
	if shown == nil {
		return
	}
	for _, v := range m.ofPlaces {
		v.DeletePartialMatch(prometheus.Labels{"app_id": appID, "region": shown.GetRegion(), "role": role})
	}
}

// forgetSeries deletes the series of an app in a region. shown is its newest decision, nil for none.
func (m *metrics) forgetSeries(appID string, shown *windlassv1.RegionScaling) {
	if shown == nil {
		return
	}
	for _, v := range m.ofPlaces {
		v.DeletePartialMatch(prometheus.Labels{"app_id": appID, "region": shown.GetRegion()})
	}
}
