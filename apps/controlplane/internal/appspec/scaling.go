package appspec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/pkg/scaling"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// CheckScaling validates the policy against the spec of the request, before its defaults.
func CheckScaling(p *windlassv1.ScalingPolicy, spec *windlassv1.DeploymentSpec, field string) error {
	if p == nil {
		return nil
	}
	if fault := scaling.Check(p); fault != nil {
		return apierr.InvalidFix(field+"."+fault.Field, fault.Message, fault.Fix)
	}
	if model.IsPooled(spec) {
		return apierr.InvalidFix(field, "the roles of a pool follow no load", "Leave scaling out, and scale each role: `windlass scale APP --role NAME=N`.")
	}
	for i, m := range p.GetMetrics() {
		if _, err := analysis.Expand(m.GetQuery(), analysis.Subject{}); err != nil {
			return apierr.InvalidFix(fmt.Sprintf("%s.metrics[%d].query", field, i), err.Error(),
				"Use the variables {{"+strings.Join(analysis.Variables(), "}}, {{")+"}}.")
		}
	}
	if err := checkRoleMetrics(p, spec, field); err != nil {
		return err
	}
	lows := []*int32{p.Min}
	at := []string{field + ".min"}
	for i, o := range p.GetOverrides() {
		lows, at = append(lows, o.Min), append(at, fmt.Sprintf("%s.overrides[%d].min", field, i))
		for j, region := range o.GetRegions() {
			if !slices.Contains(spec.GetRegions(), region) {
				return apierr.InvalidFix(fmt.Sprintf("%s.overrides[%d].regions[%d]", field, i, j),
					fmt.Sprintf("the app does not run in region %q", region), "Name one of the app's regions, or leave it out.")
			}
		}
	}
	for i, low := range lows {
		if low != nil && *low == 0 && spec.GetRouting().GetColdStart() == nil {
			return apierr.InvalidFix(at[i], "at zero, requests would fail", "Set routing.coldStart, so that they wait and wake the app, or set min to 1 or more.")
		}
	}
	if p.GetMode() == windlassv1.ScalingPolicy_MODE_ADVISE {
		return nil
	}
	const message, fix = "the replicas follow the load", "Leave replicas out: scaling.initial says what the app begins with. Or set scaling.mode to advise."
	if spec.Replicas != nil {
		return apierr.InvalidFix("spec.replicas", message, fix)
	}
	for i, o := range spec.GetOverrides() {
		if o.Replicas != nil {
			return apierr.InvalidFix(fmt.Sprintf("spec.overrides[%d].replicas", i), message, fix)
		}
	}
	return nil
}

// checkRoleMetrics fails on metrics that are measured at instances if the spec has several roles: a mean over
// instances of different roles says nothing about how many groups are needed.
func checkRoleMetrics(p *windlassv1.ScalingPolicy, spec *windlassv1.DeploymentSpec, field string) error {
	if len(spec.GetRoles()) < 2 {
		return nil
	}
	for i, m := range p.GetMetrics() {
		switch m.GetType() {
		case windlassv1.ScalingMetric_TYPE_QUEUE, windlassv1.ScalingMetric_TYPE_KV_CACHE, windlassv1.ScalingMetric_TYPE_CPU, windlassv1.ScalingMetric_TYPE_MEMORY:
			return apierr.InvalidFix(fmt.Sprintf("%s.metrics[%d].type", field, i),
				"the metric is measured at instances, and those of an app with several roles do different work",
				"Use what gateways measure: inFlight, requestsPerSecond, firstToken or latency.")
		default:
		}
	}
	return nil
}
