package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func ofHosts(n int32) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Roles = []*windlassv1.RoleSpec{{Name: "shard", Hosts: n}} }
}

// joins connects an agent in each of the regions.
func (h *harness) joins(runtime string, features []string, regions ...string) {
	h.t.Helper()
	h.runtime = runtime
	h.update(func(tx store.Tx) error {
		for _, name := range regions {
			id := h.regions[name]
			if _, _, err := tx.StartSession(id, "session-"+id, 60_000, model.Region{AgentRuntime: runtime, AgentFeatures: features}); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestHosts_NeedAgentsThatRunThem(t *testing.T) {
	w := setup(t)
	joins := func(runtime string, features ...string) { w.joins(runtime, features, "us-east-1", "eu-west-1") }
	for runtime, features := range map[string][]string{
		model.RuntimeProcess: {agentv1.Feature_FEATURE_ROLES.String()},
		"kubernetes":         {agentv1.Feature_FEATURE_POOLED_ROLES.String()},
	} {
		joins(runtime, features...)
		_, err := w.deployBy("chat", nil, ofHosts(2))
		refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.roles[0].hosts")
		require.ErrorContains(t, err, `instances of role "shard" have 2 hosts, but the agent of region us-east-1 (runtime `+runtime+`) cannot run instances of several hosts`)
		plan := w.planned("chat", nil, ofHosts(2))
		require.False(t, plan.GetWouldRun())
		require.Equal(t, []string{"VALIDATION spec.roles[0].hosts"}, reasons(plan))
		_, err = w.deployBy("one-"+runtime, nil, ofHosts(1))
		require.NoError(t, err)
	}
	_, err := w.deployBy("idle", nil, ofHosts(2), replicas(0))
	require.NoError(t, err, "a version without replicas runs nowhere")
	w.settle("idle")
	scale := func() error {
		_, err := w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "idle", Replicas: 1})
		return err
	}
	refused(t, scale(), connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.roles[0].hosts")
	_, err = w.deployBy("idle", nil, ofHosts(2), replicas(1))
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.roles[0].hosts")
	joins("kubernetes", agentv1.Feature_FEATURE_UNIT_HOSTS.String())
	require.True(t, w.planned("chat", nil, ofHosts(2)).GetWouldRun())
	_, err = w.deployBy("chat", nil, ofHosts(2))
	require.NoError(t, err)
	history, err := w.history(w.viewer).ListHistory(t.Context(), &windlassv1.ListHistoryRequest{App: "chat"})
	require.NoError(t, err)
	require.Contains(t, history.String(), "; a replica is an instance of 2 hosts")
	require.NoError(t, scale())
}

func TestGangs_NeedAgentsThatStartThem(t *testing.T) {
	w := setup(t)
	unitHosts, gangs := agentv1.Feature_FEATURE_UNIT_HOSTS.String(), agentv1.Feature_FEATURE_GANG.String()
	of := func(of windlassv1.Gang_Of) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) { s.Gang = &windlassv1.Gang{Of: of} }
	}
	w.joins("kubernetes", []string{unitHosts}, "us-east-1", "eu-west-1")
	_, err := w.deployBy("chat", nil, ofHosts(2), of(windlassv1.Gang_OF_GROUP))
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.gang")
	require.ErrorContains(t, err, "the agent of region us-east-1 (runtime kubernetes) cannot start pods all or nothing")
	_, err = w.deployBy("single", nil, ofHosts(2), of(windlassv1.Gang_OF_NONE))
	require.NoError(t, err)
	_, err = w.deployBy("usual", nil, ofHosts(2), of(windlassv1.Gang_OF_UNIT))
	require.NoError(t, err, "it is the default, which agents of earlier releases do not know either")
	w.joins("kubernetes", []string{unitHosts, gangs}, "us-east-1", "eu-west-1")
	_, err = w.deployBy("chat", nil, ofHosts(2), of(windlassv1.Gang_OF_GROUP))
	require.NoError(t, err)
}

func TestTopology_NeedsAgentsWithTheWord(t *testing.T) {
	w := setup(t)
	features := []string{agentv1.Feature_FEATURE_UNIT_HOSTS.String(), agentv1.Feature_FEATURE_GANG.String()}
	pack := func(word string) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) { s.Topology = &windlassv1.Topology{Pack: word} }
	}
	has := func(region string, words ...string) {
		data, err := proto.Marshal(&agentv1.Capacity{CpuMillicores: 64_000, MemoryMib: 64_000, TopologyWords: words})
		require.NoError(t, err)
		w.update(func(tx store.Tx) error {
			session, err := tx.GetRegion(w.regions[region])
			if err != nil {
				return err
			}
			session.SessionSequence, session.LastReportAt, session.Capacity = guards.Add(1), time.Now().UnixMilli(), data
			return tx.NoteReports([]model.Region{session}, 60_000)
		})
	}
	w.joins("kubernetes", features, "us-east-1", "eu-west-1")
	_, err := w.deployBy("chat", nil, ofHosts(2), pack("rack"))
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.topology")
	require.ErrorContains(t, err, "the agent of region us-east-1 (runtime kubernetes) cannot run pods together")

	w.joins("kubernetes", append(features, agentv1.Feature_FEATURE_TOPOLOGY.String()), "us-east-1", "eu-west-1")
	require.Empty(t, reasons(w.planned("chat", nil, ofHosts(2), pack("rack"))), "without a report, the words of a region are not known")
	has("us-east-1", "rack", "zone")
	has("eu-west-1", "host", "zone")
	_, err = w.deployBy("chat", nil, ofHosts(2), pack("rack"))
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.topology.pack")
	require.ErrorContains(t, err, `region eu-west-1 has no word "rack" for parts of it, but host, zone`)
	require.Equal(t, []string{"VALIDATION spec.topology.pack"}, reasons(w.planned("chat", nil, ofHosts(2), pack("rack"))))
	_, err = w.deployBy("chat", nil, ofHosts(2), pack("zone"))
	require.NoError(t, err)
	history, err := w.history(w.viewer).ListHistory(t.Context(), &windlassv1.ListHistoryRequest{App: "chat"})
	require.NoError(t, err)
	require.Contains(t, history.String(), "; a replica is an instance of 2 hosts; an instance is in one zone, if one has room")
	region, err := w.regionService(w.viewer).GetRegion(t.Context(), &windlassv1.GetRegionRequest{Region: "us-east-1"})
	require.NoError(t, err)
	require.Equal(t, []string{"rack", "zone"}, region.GetRegion().GetTopologyWords())
	has("eu-west-1")
	_, err = w.deployBy("other", nil, ofHosts(2), pack("zone"))
	require.ErrorContains(t, err, `region eu-west-1 has no word "zone" for parts of it, but none`)
}

func TestSlots_NeedAgentsThatKeepThem(t *testing.T) {
	w := setup(t)
	inPlace := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE}
	slots := func(instances int32) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) {
			s.Roles = []*windlassv1.RoleSpec{{Name: "router"}, {Name: "cache", Instances: instances, Slots: windlassv1.RoleSpec_SLOTS_STABLE}}
		}
	}
	w.joins(model.RuntimeProcess, []string{agentv1.Feature_FEATURE_ROLES.String()}, "us-east-1", "eu-west-1")
	_, err := w.deployBy("chat", inPlace, slots(2))
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.roles[1].slots")
	require.ErrorContains(t, err, "the agent of region us-east-1 (runtime process) cannot keep slots stable")
	keeps := func() {
		w.joins(model.RuntimeProcess, []string{agentv1.Feature_FEATURE_STABLE_SLOTS.String(), agentv1.Feature_FEATURE_IN_PLACE.String()}, "us-east-1", "eu-west-1")
	}
	keeps()
	_, err = w.deployBy("chat", inPlace, slots(2))
	require.NoError(t, err)
	w.settle("chat")
	keeps()

	_, err = w.deployBy("chat", inPlace, slots(3))
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.roles")
	require.ErrorContains(t, err, `role "cache" of v1 has stable slots`)
	_, err = w.deployBy("chat", inPlace, slots(2), args("b"))
	require.NoError(t, err)
	require.EqualValues(t, 2, w.settle("chat").GetLiveVersion())
	_, err = w.deployBy("chat", nil, args("c"))
	require.NoError(t, err, "a version may give its slots up")
}

func TestHosts_AreCheckedWhereTheVersionGetsReplicas(t *testing.T) {
	w := setup(t)
	unitHosts := []string{agentv1.Feature_FEATURE_UNIT_HOSTS.String()}
	w.deploy("chat")
	w.settle("chat")
	scale := func(region string, n int32) {
		t.Helper()
		_, err := w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: n, Region: region})
		require.NoError(t, err)
		w.settle("chat")
	}
	scale("eu-west-1", 0)
	w.joins(model.RuntimeProcess, nil, "us-east-1", "eu-west-1")
	w.joins("kubernetes", unitHosts, "us-east-1")
	require.Empty(t, reasons(w.planned("chat", nil, ofHosts(2))), "the version gets no replicas in eu-west-1")

	scale("", 0)
	scale("eu-west-1", 1)
	w.joins(model.RuntimeProcess, nil, "us-east-1", "eu-west-1")
	w.joins("kubernetes", unitHosts, "us-east-1")
	_, err := w.deployBy("chat", nil, ofHosts(2))
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.roles[0].hosts")
	require.ErrorContains(t, err, "the agent of region eu-west-1")
}

func TestHosts_PinNeedsAgentsThatRunThem(t *testing.T) {
	w := setup(t)
	unitHosts := []string{agentv1.Feature_FEATURE_UNIT_HOSTS.String()}
	w.joins("kubernetes", unitHosts, "us-east-1", "eu-west-1")
	w.deploy("chat", ofHosts(2))
	w.settle("chat")
	w.deploy("chat")
	w.settle("chat")
	w.joins("kubernetes", nil, "us-east-1")
	w.joins("kubernetes", unitHosts, "eu-west-1")
	_, err := w.pin(1, 10, pinnedWith(1, "us-east-1", "eu-west-1"))
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.roles[0].hosts")
	require.ErrorContains(t, err, "the agent of region us-east-1")
	_, err = w.pin(1, 10, pinnedWith(1, "eu-west-1"))
	require.NoError(t, err)
}

func TestHosts_NeedTheFeatureOfRoles(t *testing.T) {
	w := setup(t)
	w.joins("kubernetes", []string{agentv1.Feature_FEATURE_UNIT_HOSTS.String()}, "us-east-1", "eu-west-1")
	w.deny(windlassv1.Feature_FEATURE_ROLES)
	_, err := w.deployBy("chat", nil, ofHosts(2))
	refused(t, err, connect.CodePermissionDenied, notAllowed, "spec.roles")
	_, err = w.deployBy("chat", nil, ofHosts(1))
	require.NoError(t, err)
}

func TestHosts_AutomaticScalingNeedsAgentsThatRunThem(t *testing.T) {
	w := setup(t)
	unitHosts := []string{agentv1.Feature_FEATURE_UNIT_HOSTS.String()}
	w.joins("kubernetes", unitHosts, "us-east-1", "eu-west-1")
	require.NoError(t, w.deployScaled(scalingPolicy(), ofHosts(2)))
	w.settle("chat")
	w.joins("kubernetes", nil, "us-east-1")
	w.joins("kubernetes", unitHosts, "eu-west-1")
	err := w.api.Rescale(t.Context(), w.decision("us-east-1", 3))
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.roles[0].hosts")
	require.ErrorContains(t, err, "the agent of region us-east-1")
	require.Equal(t, map[string]int32{"us-east-1": 1, "eu-west-1": 1}, w.sizes("chat", 1))
	require.NoError(t, w.api.Rescale(t.Context(), w.decision("eu-west-1", 3)), "the agent of this region can run them")
	w.joins("kubernetes", unitHosts, "us-east-1")
	require.NoError(t, w.api.Rescale(t.Context(), w.decision("us-east-1", 3)))
	require.Equal(t, map[string]int32{"us-east-1": 3, "eu-west-1": 3}, w.sizes("chat", 1))
}

func TestPairs_NeedAgentsThatRouteThem(t *testing.T) {
	w := setup(t)
	roles, pairing := agentv1.Feature_FEATURE_ROLES.String(), agentv1.Feature_FEATURE_PAIRING.String()
	of := func(engine windlassv1.Pairing_Engine) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) {
			s.Roles = []*windlassv1.RoleSpec{{Name: "prefill"}, {Name: "decode", Entry: true}}
			s.Pairing = &windlassv1.Pairing{Engine: engine}
		}
	}
	w.joins("kubernetes", []string{roles}, "us-east-1", "eu-west-1")
	_, err := w.deployBy("chat", nil, of(windlassv1.Pairing_ENGINE_NIXL))
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "spec.pairing")
	require.ErrorContains(t, err, "the agent of region us-east-1 does not tell gateways which instances are pairs")
	_, err = w.deployBy("alone", nil, of(windlassv1.Pairing_ENGINE_NONE))
	require.NoError(t, err)
	w.joins("kubernetes", []string{roles, pairing}, "us-east-1", "eu-west-1")
	_, err = w.deployBy("chat", nil, of(windlassv1.Pairing_ENGINE_NIXL))
	require.NoError(t, err)
}
