package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// planServer is a control plane that gives the same answer to each plan.
type planServer struct {
	windlassv1connect.UnimplementedAppServiceHandler
	asked *windlassv1.PlanDeployRequest
	plan  *windlassv1.PlanDeployResponse
	err   error
}

func (f *planServer) PlanDeploy(_ context.Context, req *windlassv1.PlanDeployRequest) (*windlassv1.PlanDeployResponse, error) {
	f.asked = req
	return f.plan, f.err
}

func (f *planServer) windlass(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewAppServiceHandler(f))
	server := httptest.NewServer(mux)
	defer server.Close()
	file := filepath.Join(t.TempDir(), "app.yaml")
	require.NoError(t, os.WriteFile(file, []byte("app: llama\ncommand: [serve]\nregions: [eu, us]\nrollout: {strategy: canary, steps: [{weight: 10, pause: 10m}]}\n"), 0o600))
	var out bytes.Buffer
	env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir()}
	root := New(Config{Stdout: &out, Stderr: &bytes.Buffer{}, Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client()})
	if len(args) == 0 || args[0] != "deploy" {
		args = append([]string{"plan"}, args...)
	}
	root.SetArgs(append(args, "-f", file))
	err = root.ExecuteContext(t.Context())
	return out.String(), err
}

func versions(pairs ...int32) (out []*windlassv1.PlanVersion) {
	for i := 0; i < len(pairs); i += 3 {
		out = append(out, &windlassv1.PlanVersion{Version: pairs[i], Replicas: pairs[i+1], Weight: pairs[i+2]})
	}
	return out
}

func TestPlan_ShowsEachPart(t *testing.T) {
	at := durationpb.New
	step := func(s *windlassv1.PlanStep, wave, region string) *windlassv1.PlanStep {
		s.Wave, s.Region = wave, region
		return s
	}
	f := &planServer{plan: &windlassv1.PlanDeployResponse{
		Outcome: windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT, Version: 4, LiveVersion: 2, SupersedesVersion: 3,
		Findings: []*windlassv1.PlanFinding{
			{
				Reason: windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, Blocks: true, Field: "spec.resources.gpu", Region: "eu",
				Message: "region eu needs 4 more GPUs H100 at its peak and has 2 free", Fix: "Ask for fewer replicas.",
			},
			{Reason: windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, Region: "us", Message: "region us is out of reach: the rollout would wait for it"},
		},
		Changes: []*windlassv1.FieldChange{
			{Path: "args[1]", Kind: windlassv1.FieldChange_KIND_CHANGED, Old: "a", New: "b"},
			{Path: `env["KEY"]`, Kind: windlassv1.FieldChange_KIND_ADDED, Hidden: true},
			{Path: "shmMib", Kind: windlassv1.FieldChange_KIND_REMOVED, Old: "64"},
		},
		Steps: []*windlassv1.PlanStep{
			step(&windlassv1.PlanStep{Kind: windlassv1.PlanStep_KIND_WAVE, At: at(0)}, "canary", ""),
			step(&windlassv1.PlanStep{Kind: windlassv1.PlanStep_KIND_MOVE, At: at(0), Versions: versions(2, 2, 90, 4, 1, 10)}, "canary", "eu"),
			step(&windlassv1.PlanStep{Kind: windlassv1.PlanStep_KIND_PAUSE, At: at(0), Loads: 1, Wait: at(10 * time.Minute), Step: 1, Steps: 2, Checks: []string{"errors"}}, "canary", "eu"),
			step(&windlassv1.PlanStep{Kind: windlassv1.PlanStep_KIND_GATE, At: at(10 * time.Minute), Step: 2, Steps: 2}, "canary", "eu"),
			step(&windlassv1.PlanStep{Kind: windlassv1.PlanStep_KIND_BAKE, At: at(10 * time.Minute), Wait: at(time.Hour)}, "canary", ""),
			step(&windlassv1.PlanStep{Kind: windlassv1.PlanStep_KIND_MOVE, At: at(10 * time.Minute), Versions: versions(4, 2, 100), InPlace: true}, "canary", "eu"),
			step(&windlassv1.PlanStep{Kind: windlassv1.PlanStep_KIND_MOVE, At: at(10 * time.Minute), Versions: versions(4, 1, 100), InPlace: true, KeepsInstances: true}, "canary", "us"),
			{Kind: windlassv1.PlanStep_KIND_LIVE, At: at(70 * time.Minute), Loads: 3, Versions: versions(4, 0, 0)},
			{Kind: windlassv1.PlanStep_KIND_RETAIN, At: at(70 * time.Minute), Versions: versions(2, 0, 0), Wait: at(time.Hour)},
			{Kind: windlassv1.PlanStep_KIND_MOVE, At: at(130 * time.Minute), Region: "old"},
		},
		StepsLeftOut: 7, Lasts: at(130 * time.Minute), Loads: 3,
		Regions: []*windlassv1.PlanRegion{
			{
				Region: "eu", Status: windlassv1.RegionStatus_REGION_STATUS_CONNECTED, Wave: "canary",
				ReplicasNow: 2, ReplicasPeak: 3, ReplicasAfter: 2, GpusNow: 8, GpusPeak: 12, GpusAfter: 8, GpusNeeded: 4, GpusFree: 2,
				Gpu: &windlassv1.Gpu{Count: 4, Product: "H100"},
			},
			{Region: "us", Status: windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE, ReplicasAfter: 1, ReplicasPeak: 1},
		},
		Quota: &windlassv1.Quota{
			WorkspaceName: "search", Usage: &windlassv1.Usage{Apps: 1, Deployments: 1, Instances: 4, Gpus: 8, StartsLeft: 10},
			Limits: &windlassv1.Limits{Gpus: new(int64(64)), StartsPerMinute: new(int64(60))},
		},
		UsageAfter: &windlassv1.Usage{Apps: 1, Deployments: 1, Instances: 4, Gpus: 16, Rollouts: 1, StartsLeft: 9},
		Features: []*windlassv1.PlanFeature{
			{Feature: windlassv1.Feature_FEATURE_MULTI_REGION, Allowed: true, Field: "spec.regions"},
			{Feature: windlassv1.Feature_FEATURE_CANARY, Field: "rollout.strategy"},
			{Feature: windlassv1.Feature_FEATURE_SCALE_TO_ZERO, Starts: true, Field: "spec.routing.coldStart"},
		},
	}}
	out, err := f.windlass(t)
	var exit *ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 2, exit.Code)
	require.Equal(t, "default/production/llama", f.asked.GetApp())
	require.Equal(t, "10m", f.asked.GetRollout().GetSteps()[0].GetPause())
	require.Equal(t, `App:       default/production/llama
Outcome:   a rollout of v4 in place of v2; the rollout of v3, which is in flight, ends
Verdict:   it would not run
Waits:     2h10m in all, besides the time that replicas take to load, 3 times in a row, and at 1 step until somebody promotes

Obstacles:
  NO_CAPACITY: resources.gpu: region eu needs 4 more GPUs H100 at its peak and has 2 free
    Ask for fewer replicas.

Warnings:
  REGION_UNREACHABLE: region us is out of reach: the rollout would wait for it

Changes against v2:
  ~ args[1]: a -> b
  + env["KEY"]: (values are not shown)
  - shmMib: 64

Steps, when all goes well (replicas, and their share of the traffic):
AT                WAVE     REGION   WHAT
0s                canary   -        the wave begins
0s                canary   eu       2 of v2 (90%), 1 of v4 (10%)
0s + load         canary   eu       step 1 of 2: waits 10m00s, until errors pass
10m00s            canary   eu       step 2 of 2: waits for `+"`windlass rollout promote`"+`
10m00s            canary   -        the wave bakes 1h00m
10m00s            canary   eu       2 of v4 (100%), in place
10m00s            canary   us       1 of v4 (100%), instances are kept
1h10m + 3 loads   -        -        v4 is live
1h10m             -        -        v2 is kept for 1h00m
2h10m             -        old      nothing runs
                                    and 7 steps more

Regions (now, at the peak, after):
REGION   STATUS        WAVE     REPLICAS   GPUS       NEEDED   FREE   KIND
eu       connected     canary   2, 3, 2    8, 12, 8   4        2      H100
us       unreachable   -        0, 1, 1    -          -        -      -

Features that it uses:
FEATURE       ALLOWED                  FIELD
multiRegion   yes                      regions
canary        no, but the app has it   rollout.strategy
scaleToZero   no                       routing.coldStart

Quota of workspace search:
LIMIT         NOW   AFTER   OF
apps          1     1       unlimited
deployments   1     1       unlimited
instances     4     4       unlimited
gpus          8     16      64
rollouts      0     1       unlimited
starts-left   10    9       60 a minute
`, out)
}

func TestPlan_ShortensLongSeriesOfMoves(t *testing.T) {
	f := &planServer{plan: &windlassv1.PlanDeployResponse{Outcome: windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT, WouldRun: true, Version: 2, LiveVersion: 1}}
	for i := range int32(100) {
		f.plan.Steps = append(f.plan.Steps, &windlassv1.PlanStep{
			Kind: windlassv1.PlanStep_KIND_MOVE, Region: "eu", Versions: versions(1, 100-i, 100-i, 2, i+1, i),
		})
	}
	f.plan.Steps = append(f.plan.Steps, &windlassv1.PlanStep{Kind: windlassv1.PlanStep_KIND_LIVE, Versions: versions(2, 0, 0)})
	out, err := f.windlass(t)
	require.NoError(t, err)
	require.Contains(t, out, "93 of v1 (93%), 8 of v2 (7%)\n                     ... 84 moves more, one by one\n0s   -      eu       8 of v1 (8%), 93 of v2 (92%)\n")
	require.Contains(t, out, "1 of v1 (1%), 100 of v2 (99%)\n0s   -      -        v2 is live\n")
}

func TestPlan_JSONHasEveryField(t *testing.T) {
	f := &planServer{plan: &windlassv1.PlanDeployResponse{WouldRun: true, Outcome: windlassv1.PlanDeployResponse_OUTCOME_UNCHANGED, Version: 1, LiveVersion: 1}}
	out, err := f.windlass(t, "-o", "json")
	require.NoError(t, err)
	require.JSONEq(t, `{
  "changes": [],
  "features": [],
  "findings": [],
  "liveVersion": 1, "loads": 0,
  "newApp": false,
  "outcome": "OUTCOME_UNCHANGED",
  "regions": [],
  "steps": [],
  "stepsLeftOut": 0,
  "supersedesVersion": 0,
  "version": 1,
  "wouldRun": true
}
`, out)
}

func TestPlan_RefusedFileWouldNotRun(t *testing.T) {
	f := &planServer{err: rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.replicas", "at most 10000")}
	out, err := f.windlass(t, "-o", "json")
	var exit *ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 2, exit.Code)
	var got struct {
		WouldRun bool
		Findings []struct {
			Reason, Field, Message string
			Blocks                 bool
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.False(t, got.WouldRun)
	require.Equal(t, "ERROR_REASON_VALIDATION", got.Findings[0].Reason)
	require.Equal(t, "spec.replicas", got.Findings[0].Field)
	require.True(t, got.Findings[0].Blocks)

	f.err = rpc.Error(connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "", "not with this key")
	out, err = f.windlass(t)
	require.Error(t, err)
	require.NotErrorAs(t, err, &exit, "code 1")
	require.Empty(t, out)
}

func TestDryRun(t *testing.T) {
	f := &planServer{plan: &windlassv1.PlanDeployResponse{Outcome: windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT, Version: 4, LiveVersion: 2, WouldRun: true}}
	for _, form := range []string{"table", "json"} {
		want, err := f.windlass(t, "-o", form)
		require.NoError(t, err)
		got, err := f.windlass(t, "deploy", "--dry-run=server", "-o", form)
		require.NoError(t, err)
		require.Equal(t, want, got, "a dry run has the output of plan")
	}

	t.Run("a deploy that would be refused ends with the code of plan", func(t *testing.T) {
		f := &planServer{plan: &windlassv1.PlanDeployResponse{Outcome: windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT, Version: 4}}
		_, want := f.windlass(t)
		_, got := f.windlass(t, "deploy", "--dry-run=server")
		require.Error(t, want)
		require.Equal(t, want, got)
	})

	t.Run("other values are refused", func(t *testing.T) {
		_, err := f.windlass(t, "deploy", "--dry-run=client")
		require.EqualError(t, err, `--dry-run="client": use none or server`)
		_, err = f.windlass(t, "deploy", "--dry-run=server", "--diff")
		require.ErrorContains(t, err, "--dry-run and --diff")
	})
}

func TestPlan_ShowsPools(t *testing.T) {
	spec := &windlassv1.DeploymentSpec{
		Layout: windlassv1.Layout_LAYOUT_POOLED,
		Roles:  []*windlassv1.RoleSpec{{Name: "prefill", Instances: 8}, {Name: "decode"}},
	}
	p := &windlassv1.PlanDeployResponse{
		Outcome: windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT, WouldRun: true, Version: 2, LiveVersion: 1,
		Steps: []*windlassv1.PlanStep{
			{Kind: windlassv1.PlanStep_KIND_MOVE, Region: "eu", Versions: versions(1, 75, 75, 2, 25, 25)},
			{Kind: windlassv1.PlanStep_KIND_MOVE, Region: "eu", Versions: versions(1, 0, 0, 2, 100, 100)},
		},
		Regions: []*windlassv1.PlanRegion{{Region: "eu", ReplicasNow: 100, ReplicasPeak: 125, ReplicasAfter: 100, SetCapacity: "75 % at worst, in 2 steps"}},
	}
	show := func() string {
		var out bytes.Buffer
		w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
		planTable(w, "a/b/chat", &appFile{Spec: spec}, p)
		require.NoError(t, w.Flush())
		return out.String()
	}
	text := show()
	for _, want := range []string{
		"8 prefill, the present number of decode in each region", "versions, and their share of the traffic",
		"75% of the pool as v1 (75%), 25% of the pool as v2 (25%)", "nothing of v1 (0%), the pool of v2 (100%)",
		"POOL", "100%, 125%, 100%", "Set capacity in eu: 75 % at worst",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "in order")
	spec.Update = &windlassv1.PoolUpdate{Order: windlassv1.PoolUpdate_ORDER_INTERLEAVED}
	require.Contains(t, show(), "decode in each region, updated in order interleaved")
	require.NotContains(t, text, "one percent")
	require.NotContains(t, text, "REPLICAS")
	p.LiveVersion = 0
	require.Contains(t, show(), "8 prefill, 1 decode in each region")
}

func TestPlan_ShowsPairsGangsAndSlots(t *testing.T) {
	show := func(spec *windlassv1.DeploymentSpec) string {
		var out bytes.Buffer
		w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
		planTable(w, "a/b/chat", &appFile{Spec: spec}, &windlassv1.PlanDeployResponse{WouldRun: true, Outcome: windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT, Version: 1})
		require.NoError(t, w.Flush())
		return out.String()
	}
	roles := []*windlassv1.RoleSpec{{Name: "p"}, {Name: "decode", Hosts: 2, Slots: windlassv1.RoleSpec_SLOTS_STABLE}}
	text := show(&windlassv1.DeploymentSpec{
		Roles: roles, Pairing: &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_NIXL, Prefill: "p", MinPromptBytes: 2000},
		Gang: &windlassv1.Gang{Timeout: durationpb.New(time.Minute)},
	})
	require.Contains(t, text, "p and decode of one replica, engine nixl; prompts of fewer than 2000 bytes go to decode alone")
	require.Contains(t, text, "all pods of an instance of several hosts start or none does; they try again if one has no node for 1m00s")
	require.Contains(t, text, "stable of decode: a successor takes the slot")
	text = show(&windlassv1.DeploymentSpec{
		Layout: windlassv1.Layout_LAYOUT_POOLED, Roles: []*windlassv1.RoleSpec{{Name: "prefill"}, {Name: "decode"}},
		Pairing: &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_SGLANG},
	})
	require.Regexp(t, "Pairs: +prefill and decode of one version, engine sglang\n", text)
	require.NotContains(t, text, "Gangs:")
	require.NotContains(t, text, "Slots:")
	require.Contains(t, show(&windlassv1.DeploymentSpec{Roles: roles[:1], Gang: &windlassv1.Gang{Of: windlassv1.Gang_OF_GROUP}}), "all pods of a replica start or none does; they try again if one has no node for 10m00s")
	three := &windlassv1.DeploymentSpec{Roles: []*windlassv1.RoleSpec{{Name: "prefill"}, {Name: "decode", Instances: 3}}}
	require.Equal(t, "3 prefill, 9 decode", instancesText(three, 3), "3 replicas")
	require.Empty(t, instancesText(three, 0))
	require.Empty(t, instancesText(&windlassv1.DeploymentSpec{}, 3))
	require.NotContains(t, show(&windlassv1.DeploymentSpec{Roles: roles, Gang: &windlassv1.Gang{Of: windlassv1.Gang_OF_NONE}}), "Gangs:")
}
