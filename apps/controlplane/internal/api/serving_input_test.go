package api_test

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestServing_BadInputHasFieldReasonAndFix has the mistakes that files with serve and scaling commonly have. Deploy refuses
// each with one error, and a plan has the same finding.
func TestServing_BadInputHasFieldReasonAndFix(t *testing.T) {
	w := setup(t)
	w.connected(16)
	by := func(types ...windlassv1.ScalingMetric_Type) func(*windlassv1.ScalingPolicy) {
		return func(p *windlassv1.ScalingPolicy) {
			p.Metrics = nil
			for _, one := range types {
				target := "8"
				if one == windlassv1.ScalingMetric_TYPE_KV_CACHE {
					target = "0.8"
				}
				p.Metrics = append(p.Metrics, &windlassv1.ScalingMetric{Type: one, Target: target})
			}
		}
	}
	engine := func(name string) func(*windlassv1.DeploymentSpec) {
		return serving(func(s *windlassv1.DeploymentSpec) {
			s.Serve.Engine, s.Serve.Model = name, "hf://org/m"
			if name == "nim" {
				s.Serve.Model = "oci://nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8.0"
			}
		})
	}
	inFlight, cache := windlassv1.ScalingMetric_TYPE_IN_FLIGHT, windlassv1.ScalingMetric_TYPE_KV_CACHE
	couple := rolesPolicy(func(p *windlassv1.ScalingPolicy) { p.Roles[0].Couple.Role = "router" })
	cronOf := func(text string) func(*windlassv1.ScalingPolicy) {
		return func(p *windlassv1.ScalingPolicy) {
			p.Schedule = []*windlassv1.ScalingSchedule{{Cron: text, Min: new(int32(2))}}
		}
	}
	for name, c := range map[string]struct {
		policy     *windlassv1.ScalingPolicy
		spec       func(*windlassv1.DeploymentSpec)
		reason     windlassv1.ErrorReason
		field, fix string
	}{
		"min above max": {scalingPolicy(func(p *windlassv1.ScalingPolicy) { p.Min = new(int32(9)) }), args("a"), invalid, "scaling.min", "Lower min, or raise max."},
		"min above max in a role": {
			rolesPolicy(func(p *windlassv1.ScalingPolicy) { p.Roles[1].Min = new(int32(9)) }), pooled(0, 0), invalid, "scaling.roles[1].min", "Lower min, or raise max.",
		},
		"target 0":               {scalingPolicy(func(p *windlassv1.ScalingPolicy) { p.Metrics[0].Target = "0" }), args("a"), invalid, "scaling.metrics[0].target", "for example 32"},
		"unknown metric":         {scalingPolicy(by(99)), args("a"), invalid, "scaling.metrics[0].type", "Use one of TYPE_IN_FLIGHT, TYPE_REQUESTS_PER_SECOND"},
		"no metric":              {scalingPolicy(by()), args("a"), invalid, "scaling.metrics", "{type: inFlight, target: 32}"},
		"a type that is not set": {scalingPolicy(by(0)), args("a"), invalid, "scaling.metrics[0].type", "Use one of TYPE_IN_FLIGHT, TYPE_REQUESTS_PER_SECOND"},
		"kvCache of tgi":         {scalingPolicy(by(inFlight, cache)), engine("tgi"), invalid, "scaling.metrics[1].type", "Use inFlight, requestsPerSecond, queue, cpu, memory, firstToken, latency or prometheus."},
		"kvCache of tei":         {scalingPolicy(by(cache)), engine("tei"), invalid, "scaling.metrics[0].type", "Use inFlight, requestsPerSecond, queue, cpu"},
		"kvCache of llama.cpp":   {scalingPolicy(by(cache)), engine("llamacpp"), invalid, "scaling.metrics[0].type", "Use inFlight, requestsPerSecond, queue, cpu"},
		"kvCache of MAX":         {scalingPolicy(by(cache)), engine("max"), invalid, "scaling.metrics[0].type", "Use inFlight, requestsPerSecond, queue, cpu"},
		"kvCache without serve":  {scalingPolicy(by(cache)), args("a"), invalid, "scaling.metrics[0].type", "Or set serve"},
		"kvCache of a role": {rolesPolicy(func(p *windlassv1.ScalingPolicy) {
			p.Roles[1].Metrics[0] = &windlassv1.ScalingMetric{Type: cache, Target: "0.8"}
		}), pooled(0, 0), invalid, "scaling.roles[1].metrics[0].type", "Use inFlight, requestsPerSecond, queue, cpu"},
		"couple to a missing role": {couple, pooled(0, 0), invalid, "scaling.roles[0].couple.role", "Name a role that has an entry"},
		"cron with words":          {scalingPolicy(cronOf("every morning")), args("a"), invalid, "scaling.schedule[0].cron", "Write minute, hour"},
		"cron with an hour of 25":  {scalingPolicy(cronOf("0 25 * * *")), args("a"), invalid, "scaling.schedule[0].cron", "Write minute, hour"},
		"cron that never happens":  {scalingPolicy(cronOf("0 8 31 2 *")), args("a"), invalid, "scaling.schedule[0].cron", "Write a date that exists."},
		"a flag twice": {
			nil, serving(options(map[string]any{"q": "fp8", "quantization": "fp8"})), windlassv1.ErrorReason_ERROR_REASON_FLAG_TWICE,
			"spec.serve.options.quantization", "Keep one of them.",
		},
		"a flag twice in args": {nil, serving(args("-q", "a", "--quantization=b")), windlassv1.ErrorReason_ERROR_REASON_FLAG_TWICE, "spec.args", "Keep one of them"},
		"tensor that does not divide the GPUs": {
			nil, serving(gpusOf(8, ""), func(s *windlassv1.DeploymentSpec) { s.Serve.Parallel = &windlassv1.Parallelism{Tensor: 3} }),
			windlassv1.ErrorReason_ERROR_REASON_PARALLEL_MISMATCH, "spec.serve.parallel", "Set resources.gpu.count to 3 or parallel.tensor to 8",
		},
		"tensor that does not divide the heads": {
			nil, serving(gpusOf(6, ""), func(s *windlassv1.DeploymentSpec) { s.Serve.Facts = &windlassv1.ModelFacts{Heads: 64} }),
			windlassv1.ErrorReason_ERROR_REASON_HEADS_NOT_DIVISIBLE, "spec.serve.parallel.tensor", "Set tensor to a divisor of 64",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(c.spec), Scaling: c.policy})
			refused(t, err, connect.CodeInvalidArgument, c.reason, c.field)
			require.Contains(t, detailOf(err).GetFix(), c.fix)
			plan, err := w.apps(w.viewer).PlanDeploy(t.Context(), &windlassv1.PlanDeployRequest{App: "chat", Spec: echo(c.spec), Scaling: c.policy})
			if err != nil { // a rule of the schema
				refused(t, err, connect.CodeInvalidArgument, c.reason, c.field)
				require.Contains(t, detailOf(err).GetFix(), c.fix)
				return
			}
			require.False(t, plan.GetWouldRun())
			require.Equal(t, c.field, plan.GetFindings()[0].GetField())
			require.Equal(t, c.reason, plan.GetFindings()[0].GetReason())
			require.Contains(t, plan.GetFindings()[0].GetFix(), c.fix)
		})
	}
	t.Run("metrics that the engine has are accepted", func(t *testing.T) {
		for name, types := range map[string][]windlassv1.ScalingMetric_Type{
			"vllm": {cache, windlassv1.ScalingMetric_TYPE_QUEUE}, "sglang": {cache}, "nim": {cache}, "tgi": {windlassv1.ScalingMetric_TYPE_QUEUE},
		} {
			plan, err := w.apps(w.viewer).PlanDeploy(t.Context(), &windlassv1.PlanDeployRequest{App: "good", Spec: echo(engine(name)), Scaling: scalingPolicy(by(types...))})
			require.NoError(t, err)
			require.NotContains(t, reasons(plan), "VALIDATION scaling.metrics[0].type", name)
		}
		plan, err := w.apps(w.viewer).PlanDeploy(t.Context(), &windlassv1.PlanDeployRequest{App: "good", Spec: echo(), Scaling: scalingPolicy(by(windlassv1.ScalingMetric_TYPE_QUEUE))})
		require.NoError(t, err)
		require.Empty(t, reasons(plan), "gateways have a queue, too")
	})
}
