package api_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	outcomeRollout   = windlassv1.PlanDeployResponse_OUTCOME_ROLLOUT
	outcomeScaled    = windlassv1.PlanDeployResponse_OUTCOME_SCALED
	outcomeUnchanged = windlassv1.PlanDeployResponse_OUTCOME_UNCHANGED
	outcomeBack      = windlassv1.PlanDeployResponse_OUTCOME_TAKEN_BACK
	noCapacity       = windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY
	isUnreachable    = windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE
)

// planned returns the plan of a deploy. It requires that the call changes nothing.
func (h *harness) planned(app string, policy *windlassv1.RolloutPolicy, edit ...func(*windlassv1.DeploymentSpec)) *windlassv1.PlanDeployResponse {
	h.t.Helper()
	before, quota := h.dump(), h.quota()
	res, err := h.apps(h.viewer).PlanDeploy(h.t.Context(), &windlassv1.PlanDeployRequest{App: app, Spec: echo(edit...), Rollout: policy})
	require.NoError(h.t, err)
	require.Equal(h.t, before, h.dump(), "a plan writes nothing")
	require.True(h.t, proto.Equal(quota, h.quota()), "a plan uses no quota")
	return res
}

// reasons returns the reason and field of each finding that blocks the deploy.
func reasons(p *windlassv1.PlanDeployResponse) (out []string) {
	for _, f := range p.GetFindings() {
		if f.GetBlocks() {
			out = append(out, strings.TrimPrefix(f.GetReason().String(), "ERROR_REASON_")+" "+cmp.Or(f.GetField(), f.GetLimit().GetName(), f.GetRegion()))
		}
	}
	return out
}

// connected makes every region report that it is connected and has 16 GPUs. free is the number of free GPUs.
func (h *harness) connected(free int32) {
	h.t.Helper()
	capacity, err := proto.Marshal(&agentv1.Capacity{Gpus: []*agentv1.GpuPool{
		{Product: "H100", Pool: "h100", Allocatable: 16, Requested: 16 - free, Free: free, LargestFree: min(free, 8), Hosts: 2, ResourceName: "nvidia.com/gpu"},
	}})
	require.NoError(h.t, err)
	h.update(func(tx store.Tx) error {
		for _, id := range h.regions {
			session, _, err := tx.StartSession(id, "session-"+id, 60_000, model.Region{AgentFeatures: []string{agentv1.Feature_FEATURE_IN_PLACE.String()}})
			if err != nil {
				return err
			}
			session.SessionSequence, session.LastReportAt, session.Capacity = guards.Add(1), time.Now().UnixMilli(), capacity
			if err := tx.NoteReports([]model.Region{session}, 60_000); err != nil {
				return err
			}
		}
		return nil
	})
}

// state returns the rows of a region, by version, in the form of a plan.
func state(rows []model.Topology, versions map[string]int32, region string) string {
	var parts []string
	for _, t := range rows {
		n := t.Replicas
		if t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING && t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED {
			n = 0
		}
		if t.RegionID == region && (n > 0 || t.Weight > 0) {
			parts = append(parts, fmt.Sprintf("v%d %d %d%%", versions[t.DeploymentID], n, t.Weight))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// moves returns the moves of each region until the workflow has nothing left to do.
func (h *harness) moves(appID string, versions map[string]int32) map[string][]string {
	h.t.Helper()
	out, last := map[string][]string{}, map[string]string{}
	look := func(note bool) {
		require.NoError(h.t, h.store.View(h.t.Context(), func(tx store.Tx) error {
			rows, err := tx.ListTopology([]string{appID})
			for name, id := range h.regions {
				if now := state(rows, versions, id); now != last[name] {
					last[name] = now
					if note {
						out[name] = append(out[name], now)
					}
				}
			}
			return err
		}))
	}
	look(false)
	for range 40 {
		require.NoError(h.t, h.stepper.Step(h.t.Context(), appID))
		look(true)
		h.report(appID)
	}
	return out
}

func movesOf(p *windlassv1.PlanDeployResponse) map[string][]string {
	out := map[string][]string{}
	for _, s := range p.GetSteps() {
		if s.GetKind() != windlassv1.PlanStep_KIND_MOVE {
			continue
		}
		var parts []string
		for _, v := range s.GetVersions() {
			parts = append(parts, fmt.Sprintf("v%d %d %d%%", v.GetVersion(), v.GetReplicas(), v.GetWeight()))
		}
		out[s.GetRegion()] = append(out[s.GetRegion()], strings.Join(parts, ", "))
	}
	return out
}

func TestPlan_EqualsWhatTheDeployDoes(t *testing.T) {
	waves := []*windlassv1.Wave{{Name: "canary", Regions: []string{"eu-west-1"}}, {Name: "rest"}}
	for name, policy := range map[string]*windlassv1.RolloutPolicy{
		"none":     nil,
		"rolling":  {MaxSurge: "1", Waves: waves},
		"recreate": {Strategy: windlassv1.RolloutPolicy_STRATEGY_RECREATE},
		"in place": {Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE},
		"canary": {
			Strategy: windlassv1.RolloutPolicy_STRATEGY_CANARY, MaxSurge: "1", Waves: waves,
			Steps: []*windlassv1.CanaryStep{{Weight: 10}, {Replicas: 2}},
		},
		"blue-green": {Strategy: windlassv1.RolloutPolicy_STRATEGY_BLUE_GREEN, InitialWeight: 5, Retain: durationpb.New(0)},
	} {
		for database, open := range map[string]func(*testing.T) store.Store{"memory": newStore, "MariaDB": newDatabase} {
			t.Run(name+" in "+database, func(t *testing.T) {
				w := setupOn(t, open(t))
				w.connected(16)
				p := w.planned("chat", policy, args("a"), replicas(3))
				require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
				require.True(t, p.GetNewApp())
				require.Equal(t, int32(1), p.GetVersion())
				require.Equal(t, outcomeRollout, p.GetOutcome())
				v1, err := w.deployBy("chat", policy, args("a"), replicas(3))
				require.NoError(t, err)
				require.Equal(t, movesOf(p), w.moves(v1.GetAppId(), map[string]int32{v1.GetDeploymentId(): 1}))

				p = w.planned("chat", policy, args("b"))
				require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
				require.Equal(t, []int32{2, 1}, []int32{p.GetVersion(), p.GetLiveVersion()})
				v2, err := w.deployBy("chat", policy, args("b"))
				require.NoError(t, err)
				require.Equal(t, movesOf(p), w.moves(v1.GetAppId(), map[string]int32{v1.GetDeploymentId(): 1, v2.GetDeploymentId(): 2}))
				require.Equal(t, int32(2), w.app("chat").GetLiveVersion())

				// Instances do not see this change, so each strategy keeps them.
				p = w.planned("chat", policy, args("b"), routing(origins("*")))
				require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
				moves := 0
				for _, s := range p.GetSteps() {
					if s.GetKind() == windlassv1.PlanStep_KIND_MOVE {
						require.True(t, s.GetKeepsInstances() && s.GetInPlace(), "%v", s)
						moves++
					}
				}
				require.Equal(t, 2, moves)
				for _, r := range p.GetRegions() {
					require.Equal(t, []int32{3, 3, 3}, []int32{r.GetReplicasNow(), r.GetReplicasPeak(), r.GetReplicasAfter()})
				}
				v3, err := w.deployBy("chat", policy, args("b"), routing(origins("*")))
				require.NoError(t, err)
				require.Equal(t, movesOf(p), w.moves(v1.GetAppId(), map[string]int32{v2.GetDeploymentId(): 2, v3.GetDeploymentId(): 3}))
				require.Equal(t, int32(3), w.app("chat").GetLiveVersion())
			})
		}
	}
}

func TestPlan_ShowsTheAppAfterADeploy(t *testing.T) {
	w := rollingOut(t)
	policy := w.app("chat").GetRolloutPolicy()
	p := w.planned("chat", policy, args("c"))
	require.Equal(t, outcomeRollout, p.GetOutcome())
	require.Equal(t, []int32{3, 1, 2}, []int32{p.GetVersion(), p.GetLiveVersion(), p.GetSupersedesVersion()})
	require.Equal(t, time.Hour, p.GetLasts().AsDuration())
	require.Equal(t, []int32{4, 4}, []int32{p.GetLoads(), p.GetSteps()[len(p.GetSteps())-1].GetLoads()}, "two replicas in each of two regions")
	p = w.planned("chat", policy, args("b"))
	require.Equal(t, outcomeUnchanged, p.GetOutcome())
	require.True(t, p.GetWouldRun())
	require.Empty(t, p.GetSteps())
	p = w.planned("chat", policy, args("a"))
	require.Equal(t, outcomeBack, p.GetOutcome())
	require.Equal(t, int32(2), p.GetSupersedesVersion())
	require.Equal(t, "v1 2 100%", movesOf(p)["eu-west-1"][len(movesOf(p)["eu-west-1"])-1])

	w = setup(t)
	w.deploy("chat", args("a"))
	w.settle("chat")
	p = w.planned("chat", nil, args("a"), replicas(5))
	require.Equal(t, outcomeScaled, p.GetOutcome())
	require.Equal(t, map[string][]string{"eu-west-1": {"v1 5 100%"}, "us-east-1": {"v1 5 100%"}}, movesOf(p))
	require.Equal(t, "replicas", p.GetChanges()[0].GetPath())
	require.Equal(t, []string{"2", "5"}, []string{p.GetChanges()[0].GetOld(), p.GetChanges()[0].GetNew()})
	require.Equal(t, []int64{4, 10}, []int64{p.GetQuota().GetUsage().GetInstances(), p.GetUsageAfter().GetInstances()})
}

func TestPlan_ShowsNamesButNoValuesOfVariables(t *testing.T) {
	w := setup(t)
	env := func(pairs ...string) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) {
			s.Env = map[string]string{}
			for i := 0; i < len(pairs); i += 2 {
				s.Env[pairs[i]] = pairs[i+1]
			}
		}
	}
	secret := func(name, as string) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) {
			s.Secrets = append(s.Secrets, &windlassv1.SecretReference{EnvName: as, Secret: name})
		}
	}
	for _, name := range []string{"one", "two"} {
		_, err := w.environments(w.deployer).SetSecret(t.Context(), &windlassv1.SetSecretRequest{Environment: "default/production", Name: name, Value: "hush-" + name})
		require.NoError(t, err)
	}
	w.deploy("chat", args("a"), env("KEPT", "same-value", "CHANGED", "old-value", "GONE", "gone-value"), secret("one", "TOKEN"))
	w.settle("chat")
	p := w.planned("chat", &windlassv1.RolloutPolicy{MaxSurge: "1"}, args("b"),
		env("KEPT", "same-value", "CHANGED", "new-value", "MORE", "more-value"), secret("two", "TOKEN"))
	var lines []string
	for _, c := range p.GetChanges() {
		lines = append(lines, fmt.Sprintf("%s %s %q %q %v", strings.TrimPrefix(c.GetKind().String(), "KIND_"), c.GetPath(), c.GetOld(), c.GetNew(), c.GetHidden()))
	}
	require.Equal(t, []string{
		`CHANGED args[0] "a" "b" false`,
		`CHANGED env["CHANGED"] "" "" true`,
		`REMOVED env["GONE"] "" "" true`,
		`ADDED env["MORE"] "" "" true`,
		`CHANGED secrets["TOKEN"] "one, version 1" "two, version 1" false`,
		`ADDED rollout.maxSurge "" "1" false`,
		`ADDED rollout.strategy "" "STRATEGY_ROLLING" false`,
	}, lines)
	text, err := protojson.Marshal(p)
	require.NoError(t, err)
	require.NotContains(t, string(text), "-value")
	require.NotContains(t, string(text), "hush")
}

func TestPlan_NamesEveryObstacle(t *testing.T) {
	for database, open := range map[string]func(*testing.T) store.Store{"memory": newStore, "MariaDB": newDatabase} {
		t.Run(database, func(t *testing.T) {
			w := setupOn(t, open(t), limited(model.Limits{Instances: 3, Apps: 9, StartsPerMinute: 1, StartsBurst: 1}))
			w.connected(16)
			w.deploy("other", replicas(0))
			_, err := w.environments(w.owner).SetSecret(t.Context(), &windlassv1.SetSecretRequest{Environment: "default/production", Name: "there", Value: "x"})
			refused(t, err, connect.CodeResourceExhausted, tooFast, "")
			p := w.planned("chat", nil, replicas(2), func(s *windlassv1.DeploymentSpec) {
				s.Regions = append(s.Regions, "mars", "venus")
				s.Secrets = []*windlassv1.SecretReference{{EnvName: "A", Secret: "one"}, {EnvName: "B", Secret: "two"}}
			})
			require.False(t, p.GetWouldRun())
			require.Equal(t, []string{
				"UNKNOWN_REGION spec.regions[2]", "UNKNOWN_REGION spec.regions[3]",
				"UNKNOWN_SECRET spec.secrets[0].secret", "UNKNOWN_SECRET spec.secrets[1].secret",
				"RATE_LIMITED starts_per_minute", "QUOTA_EXCEEDED instances",
			}, reasons(p))
			require.Positive(t, p.GetFindings()[4].GetLimit().GetRetryAfterMs())
			require.NotEmpty(t, p.GetChanges())
			require.Empty(t, p.GetSteps())
		})
	}
	w := setup(t)
	w.connected(16)
	for field, p := range map[string]*windlassv1.PlanDeployResponse{
		"VALIDATION spec.minReady":             w.planned("chat", nil, replicas(1), func(s *windlassv1.DeploymentSpec) { s.MinReady = 2 }),
		"VALIDATION rollout.maxUnavailable":    w.planned("chat", &windlassv1.RolloutPolicy{MaxSurge: "0", MaxUnavailable: "0"}),
		"NOT_FOUND app":                        w.planned("lab/nowhere/chat", nil),
		"VALIDATION rollout.waves[0].labels":   w.planned("chat", &windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Labels: map[string]string{"tier": "x"}}, {}}}),
		"VALIDATION rollout.waves":             w.planned("chat", &windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{Regions: []string{"us-east-1"}}}}),
		"VALIDATION rollout.analysis[0]":       w.planned("chat", &windlassv1.RolloutPolicy{Analysis: []*windlassv1.AnalysisCheck{{Name: "a", Query: "up{{{selector}}}", Max: new(1.0)}}, Waves: []*windlassv1.Wave{{BakeTime: durationpb.New(time.Minute)}}}),
		"VALIDATION spec.healthCheck.port":     w.planned("chat", nil, func(s *windlassv1.DeploymentSpec) { s.HealthCheck = &windlassv1.HealthCheck{Port: "x"} }),
		"VALIDATION spec.env[\"WINDLASS_ID\"]": w.planned("chat", nil, func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"WINDLASS_ID": "x"} }),
	} {
		require.Equal(t, []string{field}, reasons(p))
		require.False(t, p.GetWouldRun())
	}
	w.deploy("gone")
	_, err := w.apps(w.owner).DeleteApp(t.Context(), &windlassv1.DeleteAppRequest{App: "gone"})
	require.NoError(t, err)
	require.Equal(t, []string{"APP_DELETING app"}, reasons(w.planned("gone", nil)))
}

func TestPlan_ComparesThePeakWithFreeGPUs(t *testing.T) {
	pool := func(n int32, pool string) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) {
			s.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: n, Pool: pool}}
		}
	}
	eu := func(p *windlassv1.PlanDeployResponse) *windlassv1.PlanRegion { return p.GetRegions()[0] }
	w := setup(t)
	p := w.planned("chat", nil, pool(4, "h100"))
	require.False(t, p.GetWouldRun())
	require.Equal(t, []string{"REGION_UNREACHABLE spec.regions[1]", "REGION_UNREACHABLE spec.regions[0]"}, reasons(p))

	w.connected(8)
	p = w.planned("chat", nil, pool(4, "h100"))
	require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
	require.Equal(t, []int32{0, 8, 8, 8, 8}, []int32{eu(p).GetGpusNow(), eu(p).GetGpusPeak(), eu(p).GetGpusAfter(), eu(p).GetGpusNeeded(), eu(p).GetGpusFree()})
	require.Equal(t, []string{"NO_CAPACITY spec.resources.gpu", "NO_CAPACITY spec.resources.gpu"}, reasons(w.planned("chat", nil, pool(4, "a100"))))
	p = w.planned("chat", nil, pool(4, "h100"), replicas(3))
	require.Equal(t, noCapacity, p.GetFindings()[0].GetReason())
	require.Contains(t, p.GetFindings()[0].GetMessage(), "needs 12 more GPUs of pool h100 at its peak and has 8 free")

	w.deploy("chat", pool(4, "h100"))
	w.settle("chat")
	w.connected(4)
	p = w.planned("chat", &windlassv1.RolloutPolicy{MaxSurge: "100%"}, pool(4, "h100"), args("b"))
	require.False(t, p.GetWouldRun(), "all instances of the new version next to all of the old version")
	require.Equal(t, []int32{8, 16, 8, 8, 4}, []int32{eu(p).GetGpusNow(), eu(p).GetGpusPeak(), eu(p).GetGpusAfter(), eu(p).GetGpusNeeded(), eu(p).GetGpusFree()})
	p = w.planned("chat", &windlassv1.RolloutPolicy{MaxSurge: "1"}, pool(4, "h100"), args("b"))
	require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
	require.Equal(t, []int32{2, 3, 2}, []int32{eu(p).GetReplicasNow(), eu(p).GetReplicasPeak(), eu(p).GetReplicasAfter()})
	require.EqualValues(t, 4, eu(p).GetGpusNeeded())
	p = w.planned("chat", &windlassv1.RolloutPolicy{MaxSurge: "1"}, pool(8, "h100"), args("b"))
	require.Equal(t, []string{"NO_CAPACITY spec.resources.gpu", "NO_CAPACITY spec.resources.gpu"}, reasons(p))
	w.connected(0)
	require.True(t, w.planned("chat", &windlassv1.RolloutPolicy{MaxSurge: "0"}, pool(4, "h100"), args("b")).GetWouldRun())
	require.True(t, w.planned("chat", &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_RECREATE}, pool(4, "h100"), args("b")).GetWouldRun())
	inPlace := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE}
	p = w.planned("chat", inPlace, pool(4, "h100"), args("b"))
	require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
	require.Equal(t, []int32{2, 2, 2}, []int32{eu(p).GetReplicasNow(), eu(p).GetReplicasPeak(), eu(p).GetReplicasAfter()})
	require.True(t, slices.ContainsFunc(p.GetSteps(), (*windlassv1.PlanStep).GetInPlace))
	require.False(t, w.planned("chat", inPlace, pool(8, "h100"), args("b")).GetWouldRun(), "each new instance needs more GPUs than the old instance frees")
}

func TestPlan_NamesRegionsThatARolloutWaitsFor(t *testing.T) {
	w := setup(t)
	w.deploy("chat", args("a"))
	w.settle("chat")
	eu := w.regions["eu-west-1"]
	w.update(func(tx store.Tx) error {
		session, err := tx.GetRegion(eu)
		if err != nil {
			return err
		}
		session.SessionSequence = guards.Add(1)
		if err := tx.NoteReports([]model.Region{session}, -60_000); err != nil {
			return err
		}
		_, err = tx.ExpireLeases(time.Now().UnixMilli(), 10)
		return err
	})
	fail := &windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{OnUnreachable: windlassv1.Wave_ON_UNREACHABLE_FAIL}}}
	require.Equal(t, []string{"REGION_UNREACHABLE spec.regions[1]"}, reasons(w.planned("chat", fail, args("b"))))
	skip := &windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{OnUnreachable: windlassv1.Wave_ON_UNREACHABLE_SKIP}}}
	require.Contains(t, w.planned("chat", skip, args("b")).GetFindings()[0].GetMessage(), "would leave it out for now")
	p := w.planned("chat", nil, args("b"))
	require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
	require.Equal(t, isUnreachable, p.GetFindings()[0].GetReason())
	require.Contains(t, p.GetFindings()[0].GetMessage(), "would wait for it")
	p = w.planned("chat", nil, args("b"), func(s *windlassv1.DeploymentSpec) { s.Regions = []string{"us-east-1"} })
	require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
	require.Contains(t, p.GetFindings()[0].GetMessage(), "replicas stay until it returns")
}

func TestPlan_NamesAnApprovalWithoutAWave(t *testing.T) {
	w := setup(t)
	policy := &windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{
		{Name: "all", Regions: []string{"us-east-1", "eu-west-1"}}, {Name: "rest", Approval: &windlassv1.Approval{}},
	}}
	_, err := w.deployBy("chat", policy, args("a"))
	require.NoError(t, err)
	w.settle("chat")
	p := w.planned("chat", policy, args("b"))
	require.True(t, p.GetWouldRun())
	require.Len(t, p.GetFindings(), 1)
	require.Equal(t, "rollout.waves[1].approval", p.GetFindings()[0].GetField())
	require.Equal(t, "wave rest takes no region, so no approval is needed at its end", p.GetFindings()[0].GetMessage())
}
