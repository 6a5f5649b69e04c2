package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const poolFile = `app: pool
regions: [us-east-1]
layout: pooled
roles: [{name: prefill}, {name: decode, entry: true}, {name: router}]
scaling:
  roles:
  - {role: prefill, max: 8, metrics: [{type: inFlight, target: 8}], couple: {role: decode, ratio: [0.5, 4]}}
  - {role: decode, max: 8, metrics: [{type: prometheus, query: jobs, target: 8}]}
  - {role: router, max: 2, couple: {role: prefill, ratio: [0.2, 1]}}
command: [modelserver]
`

func TestAppFile_ScalingOfRoles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.yaml")
	require.NoError(t, os.WriteFile(path, []byte(poolFile), 0o600))
	f, err := readAppFile(path, nil)
	require.NoError(t, err)
	require.Len(t, f.Scaling.GetRoles(), 3)
	require.Equal(t, []float64{0.5, 4}, f.Scaling.GetRoles()[0].GetCouple().GetRatio())

	// An export leaves out the instances that scaling sets.
	f.adoptCounts([]*windlassv1.RegionTopology{{Region: "us-east-1", Replicas: 100, Roles: []*windlassv1.RoleTopology{
		{Role: "prefill", Wanted: 3}, {Role: "decode", Wanted: 3},
	}}})
	require.Zero(t, f.Spec.GetRoles()[0].GetInstances())
	f.Scaling.Mode = windlassv1.ScalingPolicy_MODE_ADVISE
	f.adoptCounts([]*windlassv1.RegionTopology{{Region: "us-east-1", Replicas: 100, Roles: []*windlassv1.RoleTopology{{Role: "prefill", Wanted: 3}}}})
	require.EqualValues(t, 3, f.Spec.GetRoles()[0].GetInstances())
}

func TestSimulate_OfAPoolNeedsOneRole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app.yaml")
	require.NoError(t, os.WriteFile(file, []byte(poolFile), 0o600))
	simulate := func(file string, args ...string) (string, error) {
		var out bytes.Buffer
		root := New(Config{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }})
		root.SetArgs(append([]string{"scaling", "simulate", "-f", file, "--trace", "../../../../deployments/examples/traces/flash-crowd.csv"}, args...))
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	out, err := simulate(file, "--role", "prefill")
	require.NoError(t, err)
	require.Contains(t, out, "REPLICA-HOURS")
	for role, text := range map[string]string{
		"":       "name one with --role: prefill, decode, router",
		"decode": "scaling.roles[1].metrics[0].type",
		"router": "follows role prefill: simulate that one",
		"other":  "no such role; its roles are prefill, decode, router",
	} {
		_, err := simulate(file, "--role", role)
		require.ErrorContains(t, err, text)
	}
	_, err = simulate("../../../../deployments/examples/scaling.yaml", "--role", "decode")
	require.ErrorContains(t, err, "has no roles")
}

func TestScalingTable_ShowsRoles(t *testing.T) {
	resp := &windlassv1.GetScalingResponse{
		Policy: &windlassv1.ScalingPolicy{},
		Regions: []*windlassv1.RegionScaling{
			{Region: "eu", Role: "prefill", Replicas: 2, Wanted: 4, Min: 1, Max: 8, Limit: "Ratio", Unlimited: 2},
			{Region: "eu", Role: "decode", Replicas: 8, Wanted: 8, Min: 1, Max: 8, Wants: []*windlassv1.MetricWant{
				{Metric: &windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_PROMETHEUS, Target: "8"}, Problem: "no answer"},
			}},
		},
		Holds: []*windlassv1.ScalingHold{{Role: "decode", Replicas: 8, Who: "ann"}},
	}
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 1, ' ', 0)
	scalingTable(w, resp)
	scalingLines(w, resp)
	require.NoError(t, w.Flush())
	require.Regexp(t, `REGION +ROLE +INSTANCES +READY`, out.String())
	require.Regexp(t, `eu +prefill +2 +0 +4 +1 +8 +Ratio +- +- +- +-`, out.String())
	require.Regexp(t, `eu +decode +8 +0 +8 +1 +8 +- +prometheus +missing +8 +-`, out.String())
	require.Contains(t, out.String(), "prometheus in eu, role decode: no answer")
	require.Contains(t, out.String(), "8 instances of role decode in every region until")
	require.Contains(t, out.String(), "eu, role prefill: 4 of 1 to 8 instances wanted, 2 by the metrics: Ratio")
}

func TestScalingWhy_RolesOfAPool(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	whys := []string{
		"role decode: 4 instances instead of 2: kvCache 0.9 of 0.5 wants 4", "role prefill: 2 instances instead of 1: no metric", "role decode: 2 instances instead of 1: x",
		"8 instances of role decode in each region until then",
	}
	c := &historyServer{now: now, entries: 400, bounds: true, whys: whys}
	out, _, err := c.windlass(t, "--role", "prefill")
	require.NoError(t, err)
	require.Contains(t, out, "role prefill: 2 instances")
	require.NotContains(t, out, "decode")
	out, _, err = c.windlass(t, "--at", now.UTC().Format(time.RFC3339))
	require.NoError(t, err)
	require.Contains(t, out, "role decode: 4 instances", "the newest of each role")
	require.Contains(t, out, "role prefill: 2 instances")
	require.NotContains(t, out, "role decode: 2 instances")
}

func TestScale_RoleOfAHold(t *testing.T) {
	req := &windlassv1.ScaleRequest{EndHold: true}
	require.NoError(t, setRole(req, "decode"))
	require.Equal(t, "decode", req.GetRole())
	require.ErrorContains(t, setRole(req, "decode=6"), "write the name alone: --role decode")
	require.ErrorContains(t, setRole(&windlassv1.ScaleRequest{}, "decode"), "NAME=N")
}

func TestJudge_WaitsForInstancesThatLeave(t *testing.T) {
	state := func(prefill, wanted, ready, replicas int32) *windlassv1.WatchAppResponse {
		return &windlassv1.WatchAppResponse{App: &windlassv1.App{LiveDeploymentId: "dep_1"}, Deployments: []*windlassv1.Deployment{{
			Id: "dep_1", Spec: &windlassv1.DeploymentSpec{Layout: windlassv1.Layout_LAYOUT_POOLED},
			Regions: []*windlassv1.RegionTopology{{
				Region: "eu", Replicas: replicas, Ready: ready, Roles: []*windlassv1.RoleTopology{{Role: "prefill", Ready: prefill, Wanted: wanted}},
			}},
		}}}
	}
	seen := false
	require.False(t, judgeSize(state(2, 0, 0, 0), "", 0, &seen).over, "prefill has 2 ready instances of 0")
	require.True(t, judgeSize(state(0, 0, 0, 0), "", 0, &seen).over)
	req := &windlassv1.ScaleRequest{Role: "prefill"}
	require.False(t, judgeRole(state(4, 2, 100, 100), req).over)
	require.True(t, judgeRole(state(2, 2, 100, 100), req).over)
	plain := state(0, 0, 3, 1)
	plain.Deployments[0].Spec.Layout = windlassv1.Layout_LAYOUT_UNSPECIFIED
	require.False(t, judgeSize(plain, "", 1, &seen).over)
	plain.Rollout = &windlassv1.Rollout{}
	require.True(t, judgeSize(plain, "", 1, &seen).over, "the surge of a rollout is not waited for")
	surging := state(4, 2, 100, 100)
	surging.Rollout = &windlassv1.Rollout{}
	require.True(t, judgeRole(surging, req).over)
}

func TestAppReady_OfAPoolIsPercent(t *testing.T) {
	require.Equal(t, "3/4", appReady(&windlassv1.App{Replicas: 4, ReadyReplicas: 3}))
	require.Equal(t, "75%", appReady(&windlassv1.App{Pooled: true, Replicas: 200, ReadyReplicas: 150}))
	require.Equal(t, "0%", appReady(&windlassv1.App{Pooled: true}))
}

func TestPlanTable_OfAFileThatIsNotValid(t *testing.T) {
	shown := func(reason windlassv1.ErrorReason) string {
		var out bytes.Buffer
		w := tabwriter.NewWriter(&out, 0, 0, 1, ' ', 0)
		planTable(w, "chat", &appFile{Spec: &windlassv1.DeploymentSpec{}}, &windlassv1.PlanDeployResponse{
			Outcome: windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT, Version: 2, LiveVersion: 1,
			Findings: []*windlassv1.PlanFinding{{Blocks: true, Reason: reason, Field: "spec.args", Message: "wrong"}},
		})
		require.NoError(t, w.Flush())
		return out.String()
	}
	require.Regexp(t, `Outcome: +deploy would refuse it`, shown(windlassv1.ErrorReason_ERROR_REASON_VALIDATION))
	require.Regexp(t, `Outcome: +a rollout of v2 in place of v1`, shown(windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY))
}
