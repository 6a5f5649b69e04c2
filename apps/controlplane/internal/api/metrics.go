package api

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

func (a *server) registerMetrics() error {
	a.operations = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "deployment_operations_total",
		Help: "Calls that change workloads, by operation and outcome (a Connect code, or ok).",
	}, []string{"operation", "outcome"})
	a.refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_admission_refusals_total",
		Help: "Calls that were refused because of a limit, by limit.",
	}, []string{"limit"})
	a.featureRefusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_feature_refusals_total",
		Help: "Calls that were refused because the workspace may not use a feature, by feature.",
	}, []string{"feature"})
	a.sessions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_browser_sessions_total",
		Help: "Sessions of browsers, by event: signed_in, renewed, signed_out, signed_out_everywhere, link_made, refused.",
	}, []string{"event"})
	a.signIns = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_member_sign_ins_total",
		Help: "Sign-ins of members, by flow (browser, cli, device, federated) and outcome: ok, or the cause of the refusal.",
	}, []string{"flow", "outcome"})
	watchers := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "windlass_app_watchers", Help: "Open streams of WatchApp, WatchFleet, WatchSeries and FollowLogs, and of KEDA.",
	}, a.hub.count)
	registerer := a.cfg.Registerer
	return errors.Join(registerer.Register(a.operations), registerer.Register(a.refusals), registerer.Register(a.featureRefusals),
		registerer.Register(a.sessions), registerer.Register(a.signIns), registerer.Register(watchers))
}
