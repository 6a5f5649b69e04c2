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

// CheckScaling validates the policy against the spec of the request, which has no defaults yet.
func CheckScaling(p *windlassv1.ScalingPolicy, spec *windlassv1.DeploymentSpec, field string) error {
	if p == nil {
		return nil
	}
	if fault := scaling.Check(p); fault != nil {
		return apierr.InvalidFix(field+"."+fault.Field, fault.Message, fault.Fix)
	}
	switch pooled := model.IsPooled(spec); {
	case pooled && len(p.GetRoles()) == 0:
		return apierr.InvalidFix(field, "a pool has no replicas to scale: its roles scale separately", "Add an entry to scaling.roles for each role that follows the load.")
	case !pooled && len(p.GetRoles()) > 0:
		return apierr.InvalidFix(field+".roles", "the roles of the app do not scale separately", "Set spec.layout to pooled, or write the fields of the role into scaling itself.")
	case pooled:
		return checkScaledRoles(p, spec, field)
	}
	if err := checkQueries(p.GetMetrics(), field); err != nil {
		return err
	}
	if err := checkRoleMetrics(p, spec, field); err != nil {
		return err
	}
	lows := []*int32{p.Min}
	at := []string{field + ".min"}
	for i, o := range p.GetOverrides() {
		lows, at = append(lows, o.Min), append(at, fmt.Sprintf("%s.overrides[%d].min", field, i))
	}
	if err := checkScaledRegions(p.GetOverrides(), spec, field); err != nil {
		return err
	}
	for i, low := range lows {
		if low != nil && *low == 0 && spec.GetRouting().GetColdStart() == nil {
			return apierr.InvalidFix(at[i], "requests to an app at zero would fail", "Set routing.coldStart, so that requests wait and wake the app, or set min to 1 or more.")
		}
	}
	if p.GetMode() == windlassv1.ScalingPolicy_MODE_ADVISE {
		return nil
	}
	const message, fix = "the scaling policy sets the replicas", "Remove replicas, and set scaling.initial for the first deployment. Or set scaling.mode to advise."
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

// CheckScalingSignals fails for a metric of the policy that the engine of the spec does not have. spec is the result of
// Expand.
func CheckScalingSignals(p *windlassv1.ScalingPolicy, spec *windlassv1.DeploymentSpec, field string) error {
	if err := checkModelMetrics(p, spec, field); err != nil {
		return err
	}
	if fault := scaling.CheckSignals(p, spec.GetGeneratedBy(), spec.GetGenerated().GetMetrics()); fault != nil {
		return apierr.InvalidFix(field+"."+fault.Field, fault.Message, fault.Fix)
	}
	return nil
}

// checkModelMetrics fails for the room that models need if the app does not say how much room its instances have.
func checkModelMetrics(p *windlassv1.ScalingPolicy, spec *windlassv1.DeploymentSpec, field string) error {
	const fix = "Set models with slots or memoryMib, or use another metric."
	for i, m := range p.GetMetrics() {
		at := fmt.Sprintf("%s.metrics[%d].type", field, i)
		switch s := spec.GetModels(); {
		case m.GetType() != windlassv1.ScalingMetric_TYPE_MODELS:
		case s == nil:
			return apierr.InvalidFix(at, "instances of the app load no models", fix)
		case s.GetSlots() == 0 && s.GetMemoryMib() == 0:
			return apierr.InvalidFix(at, "the app does not say how many models or how much memory for models an instance has", fix)
		}
	}
	for i, r := range p.GetRoles() {
		for j, m := range r.GetMetrics() {
			if m.GetType() == windlassv1.ScalingMetric_TYPE_MODELS {
				return apierr.InvalidFix(fmt.Sprintf("%s.roles[%d].metrics[%d].type", field, i, j), "roles of a pool load no models", "Use another metric.")
			}
		}
	}
	return nil
}

// checkRoleMetrics fails on metrics that are measured at instances if the spec has several roles. A mean over
// instances of different roles does not say how many groups are needed.
func checkRoleMetrics(p *windlassv1.ScalingPolicy, spec *windlassv1.DeploymentSpec, field string) error {
	if len(spec.GetRoles()) < 2 {
		return nil
	}
	for i, m := range p.GetMetrics() {
		switch m.GetType() {
		case windlassv1.ScalingMetric_TYPE_QUEUE, windlassv1.ScalingMetric_TYPE_KV_CACHE, windlassv1.ScalingMetric_TYPE_CPU, windlassv1.ScalingMetric_TYPE_MEMORY:
			return apierr.InvalidFix(fmt.Sprintf("%s.metrics[%d].type", field, i),
				"the metric is measured at instances, but instances of different roles do different work",
				"Use a metric that gateways measure: inFlight, requestsPerSecond, firstToken or latency.")
		default:
		}
	}
	return nil
}

// checkQueries fails for a query of the metrics with an unknown variable.
func checkQueries(metrics []*windlassv1.ScalingMetric, field string) error {
	for i, m := range metrics {
		if _, err := analysis.Expand(m.GetQuery(), analysis.Subject{}); err != nil {
			return apierr.InvalidFix(fmt.Sprintf("%s.metrics[%d].query", field, i), err.Error(),
				"Use the variables {{"+strings.Join(analysis.Variables(), "}}, {{")+"}}.")
		}
	}
	return nil
}

// checkScaledRegions fails for an override that names a region in which the app does not run.
func checkScaledRegions(overrides []*windlassv1.ScalingOverride, spec *windlassv1.DeploymentSpec, field string) error {
	for i, o := range overrides {
		for j, region := range o.GetRegions() {
			if !slices.Contains(spec.GetRegions(), region) {
				return apierr.InvalidFix(fmt.Sprintf("%s.overrides[%d].regions[%d]", field, i, j),
					fmt.Sprintf("the app does not run in region %q", region), "Name one of the app's regions, or remove the region.")
			}
		}
	}
	return nil
}

// checkScaledRoles is like CheckScaling, for the roles of a pool.
func checkScaledRoles(p *windlassv1.ScalingPolicy, spec *windlassv1.DeploymentSpec, field string) error {
	if p.Zero != nil && spec.GetRouting().GetColdStart() == nil {
		return apierr.InvalidFix(field+".zero", "at zero, requests would fail", "Set routing.coldStart, so that they wait and wake the pool, or leave zero out.")
	}
	var names []string
	for _, r := range spec.GetRoles() {
		names = append(names, r.GetName())
	}
	scaled := map[string]int{}
	for i, r := range p.GetRoles() {
		at := fmt.Sprintf("%s.roles[%d]", field, i)
		scaled[r.GetRole()] = i
		if !slices.Contains(names, r.GetRole()) {
			return apierr.InvalidFix(at+".role", fmt.Sprintf("the app has no role %q", r.GetRole()), "Its roles are "+strings.Join(names, ", ")+".")
		}
		if err := checkQueries(r.GetMetrics(), at); err != nil {
			return err
		}
		if err := checkScaledRegions(r.GetOverrides(), spec, at); err != nil {
			return err
		}
	}
	if p.GetMode() == windlassv1.ScalingPolicy_MODE_ADVISE {
		return nil
	}
	set := func(at, name string) error {
		i := scaled[name]
		return apierr.InvalidFix(at, fmt.Sprintf("the scaling policy sets the instances of role %q", name),
			fmt.Sprintf("Remove instances, and set %s.roles[%d].initial for the first deployment. Or set scaling.mode to advise.", field, i))
	}
	for i, r := range spec.GetRoles() {
		if _, follows := scaled[r.GetName()]; follows && r.GetInstances() > 0 {
			return set(fmt.Sprintf("spec.roles[%d].instances", i), r.GetName())
		}
	}
	for i, o := range spec.GetOverrides() {
		for j, r := range o.GetRoles() {
			if _, follows := scaled[r.GetName()]; follows && r.GetInstances() > 0 {
				return set(fmt.Sprintf("spec.overrides[%d].roles[%d].instances", i, j), r.GetName())
			}
		}
	}
	return nil
}
