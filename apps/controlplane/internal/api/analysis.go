package api

import (
	"fmt"
	"net/netip"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// canMeasure fails for a check that this control plane cannot measure.
func (a *server) canMeasure(p *windlassv1.RolloutPolicy, field string) error {
	for i, c := range p.GetAnalysis() {
		h := c.GetWebhook()
		if h == nil && !a.cfg.ReadsMetrics && !analysis.SeenByGateways(c.GetTemplate()) {
			return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
				Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Field: fmt.Sprintf("%s[%d]", field, i),
				Fix: "Use error-rate, latency-p95 or time-to-first-token, which gateways measure, or a webhook; or ask the operator to start the control plane with --prometheus-url.",
			}, "gateways do not measure this figure, and this control plane has no Prometheus: the check would hold the rollout forever")
		}
		if h == nil || a.cfg.AllowsHookAt == nil {
			continue
		}
		u, err := analysis.ParseHookURL(h.GetUrl())
		if err != nil {
			return fmt.Errorf("read the url of %s[%d].webhook: %w", field, i, err)
		}
		// A host name is resolved only when the webhook is called. An IP address can be checked now.
		if at, err := netip.ParseAddr(u.Hostname()); err == nil && !a.cfg.AllowsHookAt(at) {
			return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
				Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Field: fmt.Sprintf("%s[%d].webhook.url", field, i),
				Fix: "Use a public address, or ask the operator to start the control plane with --webhook-allow and its network.",
			}, "the address is not public, and this control plane may not call it: the check would hold the rollout forever")
		}
	}
	return nil
}

// canScaleBy fails for a metric that this control plane cannot measure.
func (a *server) canScaleBy(p *windlassv1.ScalingPolicy, field string) error {
	for i, r := range p.GetRoles() {
		if err := a.canScaleBy(&windlassv1.ScalingPolicy{Metrics: r.GetMetrics()}, fmt.Sprintf("%s.roles[%d]", field, i)); err != nil {
			return err
		}
	}
	for i, m := range p.GetMetrics() {
		if m.GetType() == windlassv1.ScalingMetric_TYPE_PROMETHEUS && !a.cfg.ReadsMetrics {
			return rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{
				Reason: windlassv1.ErrorReason_ERROR_REASON_VALIDATION, Field: fmt.Sprintf("%s.metrics[%d].type", field, i),
				Fix: "Use another metric, or ask an operator to start the control plane with --prometheus-url.",
			}, "this control plane has no Prometheus, so it cannot measure this metric")
		}
	}
	return nil
}
