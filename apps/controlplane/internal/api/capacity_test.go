package api_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func h100s(n int32) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: n, Pool: "h100"}}
	}
}

func TestCapacity_RefusalSaysWhatIsMissing(t *testing.T) {
	for database, open := range map[string]func(*testing.T) store.Store{"memory": newStore, "MariaDB": newDatabase} {
		t.Run(database, func(t *testing.T) {
			w := setupOn(t, open(t))
			_, err := w.deployBy("unheard", nil, h100s(4), replicas(3))
			require.NoError(t, err, "without a report of capacity, no deploy is refused")

			w.connected(8)
			before := w.dump()
			_, err = w.deployBy("chat", nil, h100s(4), replicas(3))
			refused(t, err, connect.CodeFailedPrecondition, noCapacity, "spec.resources.gpu")
			require.ErrorContains(t, err, "region eu-west-1 needs 12 more GPUs of pool h100 and has 8 free; region us-east-1 needs 12 more")
			require.Equal(t, before, w.dump(), "the refused deploy left something")

			v1, err := w.deployBy("chat", nil, h100s(4))
			require.NoError(t, err)
			w.moves(v1.GetAppId(), map[string]int32{v1.GetDeploymentId(): 1})
			require.Equal(t, int32(1), w.app("chat").GetLiveVersion())
			w.connected(3)
			_, err = w.deployBy("chat", nil, h100s(4), args("b"))
			refused(t, err, connect.CodeFailedPrecondition, noCapacity, "spec.resources.gpu")
			_, err = w.apps(w.deployer).SetEnvironment(t.Context(), &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": "b"}})
			refused(t, err, connect.CodeFailedPrecondition, noCapacity, "spec.resources.gpu")

			// Without surge, no free GPUs are needed.
			for _, policy := range []*windlassv1.RolloutPolicy{{MaxSurge: "0"}, {Strategy: windlassv1.RolloutPolicy_STRATEGY_RECREATE}} {
				_, err = w.deployBy("chat", policy, h100s(4), args(policy.String()))
				require.NoError(t, err)
			}
			w.connected(4)
			_, err = w.deployBy("chat", &windlassv1.RolloutPolicy{MaxSurge: "100%"}, h100s(4), args("c"))
			refused(t, err, connect.CodeFailedPrecondition, noCapacity, "spec.resources.gpu")
			for _, policy := range []*windlassv1.RolloutPolicy{nil, {MaxSurge: "1"}} {
				_, err = w.deployBy("chat", policy, h100s(4), args(policy.String()))
				require.NoError(t, err)
			}
		})
	}
}

func TestCapacity_PolicyCanWaitForIt(t *testing.T) {
	w := setup(t)
	w.connected(0)
	policy := &windlassv1.RolloutPolicy{WaitForCapacity: durationpb.New(6 * time.Hour)}
	p := w.planned("chat", policy, h100s(4))
	require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
	require.Equal(t, noCapacity, p.GetFindings()[0].GetReason())
	require.False(t, p.GetFindings()[0].GetBlocks())
	require.Contains(t, p.GetFindings()[0].GetMessage(), "needs 8 more GPUs of pool h100 at its peak and has 0 free: the rollout would wait for room, for 6h0m0s at most")
	_, err := w.deployBy("chat", policy, h100s(4))
	require.NoError(t, err)
	require.Equal(t, int64(6*3600), w.app("chat").GetRolloutPolicy().GetWaitForCapacity().GetSeconds())
}

// Instances of a superseded version count as free for the version that replaces it.
func TestCapacity_SupersededVersionMakesRoom(t *testing.T) {
	w := setup(t)
	w.connected(8)
	_, err := w.deployBy("chat", nil, h100s(4))
	require.NoError(t, err)
	require.NoError(t, w.stepper.Step(t.Context(), w.app("chat").GetId()))
	w.connected(0)
	_, err = w.deployBy("chat", nil, h100s(4), args("mended"))
	require.NoError(t, err)
	_, err = w.deployBy("chat", nil, h100s(8), args("larger"))
	refused(t, err, connect.CodeFailedPrecondition, noCapacity, "spec.resources.gpu")
}

// A plan has a warning that names the field, if its instances need more than all hosts of a region have.
func TestCapacity_PlanWarnsOfTooMuchCPUAndMemory(t *testing.T) {
	w := setup(t)
	w.connected(8)
	data, err := proto.Marshal(&agentv1.Capacity{CpuMillicores: 2000, MemoryMib: 4096})
	require.NoError(t, err)
	w.update(func(tx store.Tx) error {
		session, err := tx.GetRegion(w.regions["us-east-1"])
		if err != nil {
			return err
		}
		session.SessionSequence, session.LastReportAt, session.Capacity = guards.Add(1), time.Now().UnixMilli(), data
		return tx.NoteReports([]model.Region{session}, 60_000)
	})
	asks := func(cpu, memory int32) func(*windlassv1.DeploymentSpec) {
		return func(s *windlassv1.DeploymentSpec) {
			s.Resources = &windlassv1.Resources{CpuMillicores: cpu, MemoryMib: memory}
		}
	}
	warned := func(p *windlassv1.PlanDeployResponse) (fields []string) {
		require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
		for _, f := range p.GetFindings() {
			require.Equal(t, noCapacity, f.GetReason())
			fields = append(fields, f.GetField())
		}
		return fields
	}
	require.Empty(t, warned(w.planned("chat", nil, asks(2000, 4096))))
	p := w.planned("chat", nil, asks(1_000_000, 5000))
	require.Equal(t, []string{"spec.resources.cpuMillicores", "spec.resources.memoryMib"}, warned(p))
	require.Equal(t, "an instance needs 1000000 millicores of CPU, and all hosts of region us-east-1 together have 2000", p.GetFindings()[0].GetMessage())
	require.Equal(t, []string{"spec.overrides"}, warned(w.planned("chat", nil, asks(1000, 4096), func(s *windlassv1.DeploymentSpec) {
		s.Overrides = []*windlassv1.Override{{Regions: []string{"us-east-1"}, Resources: &windlassv1.Resources{CpuMillicores: 3000}}}
	})))
	require.Equal(t, []string{"spec.roles[1].resources.cpuMillicores"}, warned(w.planned("chat", nil, asks(1000, 4096), func(s *windlassv1.DeploymentSpec) {
		s.Roles = []*windlassv1.RoleSpec{{Name: "a"}, {Name: "b", Resources: &windlassv1.Resources{CpuMillicores: 3000, MemoryMib: 512}}}
	})))
}

// A region of a later wave may be full now. A region without the pool is refused, because waiting does not help.
func TestCapacity_RegionWithoutThePoolIsRefused(t *testing.T) {
	w := setup(t)
	w.connected(8)
	w.deploy("chat", h100s(4))
	w.settle("chat")
	euFirst := func(p *windlassv1.RolloutPolicy) *windlassv1.RolloutPolicy {
		p.Waves = []*windlassv1.Wave{{Regions: []string{"eu-west-1"}}, {}}
		return p
	}
	has := func(pool string, free int32) {
		us := w.regions["us-east-1"]
		capacity, err := proto.Marshal(&agentv1.Capacity{Gpus: []*agentv1.GpuPool{
			{Product: "H100", Pool: pool, Allocatable: 16, Free: free, LargestFree: min(free, 8), ResourceName: "nvidia.com/gpu"},
		}})
		require.NoError(t, err)
		w.update(func(tx store.Tx) error {
			session, err := tx.GetRegion(us)
			if err != nil {
				return err
			}
			session.SessionSequence, session.LastReportAt, session.Capacity = guards.Add(1), time.Now().UnixMilli(), capacity
			return tx.NoteReports([]model.Region{session}, 60_000)
		})
	}
	has("other", 16)
	before := w.dump()
	p := w.planned("chat", euFirst(&windlassv1.RolloutPolicy{}), h100s(4), args("b"))
	require.Equal(t, []string{"NO_CAPACITY spec.resources.gpu"}, reasons(p))
	_, err := w.deployBy("chat", euFirst(&windlassv1.RolloutPolicy{}), h100s(4), args("b"))
	refused(t, err, connect.CodeFailedPrecondition, noCapacity, "spec.resources.gpu")
	require.ErrorContains(t, err, "it could begin, but not finish: region us-east-1 has no pool h100: it has 16 GPUs H100 of pool other")
	require.Contains(t, rpc.DetailOf(err).GetFix(), "Name a pool that it has, or remove the region from the spec.")
	require.Equal(t, before, w.dump(), "the refused deploy left something")

	waits := euFirst(&windlassv1.RolloutPolicy{WaitForCapacity: durationpb.New(time.Hour)})
	require.True(t, w.planned("chat", waits, h100s(4), args("b")).GetWouldRun())
	has("h100", 0)
	_, err = w.deployBy("chat", euFirst(&windlassv1.RolloutPolicy{}), h100s(4), args("b"))
	require.NoError(t, err, "the region is full now, and may have room in its wave")
}
