package api_test

import (
	"errors"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// instance makes the app live, with one instance that its region reported.
func (h *harness) instance(app string) string {
	h.t.Helper()
	made := h.deploy(app)
	h.settle(app)
	id := ident.New("ins")
	h.putInstance(made, id, "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
	return id
}

func (h *harness) putInstance(of *windlassv1.DeployResponse, id, region string, status windlassv1.InstanceStatus) {
	h.t.Helper()
	h.update(func(tx store.Tx) error {
		return tx.PutInstances([]model.Instance{{
			ID: id, WorkspaceID: h.workspace, AppID: of.GetAppId(), DeploymentID: of.GetDeploymentId(), RegionID: h.regions[region],
			Role: "main", Status: status, Address: "127.0.0.1:8000", Guard: model.NewGuard(1, guards.Add(1)),
			UpdatedAt: time.Now().UnixMilli(),
		}})
	})
}

func TestInstances_AreListedByFilterAndWithTheirNames(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	made := w.deploy("chat")
	w.settle("chat")
	ready, gone, abroad := ident.New("ins"), ident.New("ins"), ident.New("ins")
	w.putInstance(made, ready, "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
	w.putInstance(made, gone, "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED)
	w.putInstance(made, abroad, "eu-west-1", windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED)
	ids := func(req *windlassv1.ListInstancesRequest) (ids []string) {
		res, err := w.deployments(w.viewer).ListInstances(ctx, req)
		require.NoError(t, err)
		for _, i := range res.GetInstances() {
			require.Equal(t, "chat", i.GetAppName())
			require.Equal(t, int32(1), i.GetVersion())
			ids = append(ids, i.GetId())
		}
		return ids
	}
	require.Equal(t, []string{abroad, ready}, ids(&windlassv1.ListInstancesRequest{App: "chat"}))
	require.Equal(t, []string{abroad, ready, gone}, ids(&windlassv1.ListInstancesRequest{IncludeTerminated: true}))
	require.Equal(t, []string{abroad}, ids(&windlassv1.ListInstancesRequest{Region: "eu-west-1", Deployment: made.GetDeploymentId()}))
	require.Equal(t, []string{"http://127.0.0.1:8000"}, w.app("chat").GetUrls())

	_, err := w.deployments(w.viewer).ListInstances(ctx, &windlassv1.ListInstancesRequest{App: "chat", Deployment: made.GetDeploymentId()})
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "deployment")
	theirs, err := w.deployments(w.rival).ListInstances(ctx, &windlassv1.ListInstancesRequest{IncludeTerminated: true})
	require.NoError(t, err)
	require.Empty(t, theirs.GetInstances())
}

func TestInstances_ShowTheirHosts(t *testing.T) {
	w := setup(t)
	w.joins("kubernetes", []string{agentv1.Feature_FEATURE_UNIT_HOSTS.String()}, "us-east-1", "eu-west-1")
	one := w.deploy("one")
	w.putInstance(one, ident.New("ins"), "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
	several, err := w.deployBy("several", nil, func(s *windlassv1.DeploymentSpec) {
		s.Roles = []*windlassv1.RoleSpec{{Name: "main", Hosts: 4}}
	})
	require.NoError(t, err)
	w.putInstance(several, ident.New("ins"), "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
	for app, hosts := range map[string]int32{"one": 1, "several": 4} {
		res, err := w.deployments(w.viewer).ListInstances(t.Context(), &windlassv1.ListInstancesRequest{App: app})
		require.NoError(t, err)
		require.Len(t, res.GetInstances(), 1)
		require.Equal(t, hosts, res.GetInstances()[0].GetHosts(), app)
	}
}

func TestPreview_EndsWhenTheVersionIsLive(t *testing.T) {
	w := setup(t)
	preview := func(rollout string) []string {
		res, err := w.rollouts(w.viewer).GetRollout(t.Context(), &windlassv1.GetRolloutRequest{Rollout: rollout})
		require.NoError(t, err)
		return res.GetRollout().GetPreviewUrls()
	}
	first := w.deploy("chat")
	w.putInstance(first, ident.New("ins"), "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
	require.Empty(t, preview(first.GetRolloutId()), "the first version has no preview")
	w.settle("chat")
	second := w.deploy("chat", func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"A": "b"} })
	require.Empty(t, preview(second.GetRolloutId()), "not ready yet")
	require.NoError(t, w.stepper.Step(t.Context(), second.GetAppId()))
	w.putInstance(second, ident.New("ins"), "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
	require.Equal(t, []string{"http://127.0.0.1:8000"}, preview(second.GetRolloutId()))
	stream, err := w.apps(w.viewer).WatchApp(t.Context(), &windlassv1.WatchAppRequest{App: "chat"})
	require.NoError(t, err)
	require.True(t, stream.Receive())
	require.Equal(t, []string{"http://127.0.0.1:8000"}, stream.Msg().GetRollout().GetPreviewUrls())
	require.NoError(t, stream.Close())
	w.settle("chat")
	require.Empty(t, preview(second.GetRolloutId()))
}

func TestPreview_HasOnlyInstancesOfTheNewVersion(t *testing.T) {
	w := setup(t)
	w.connected(8)
	inPlace := &windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE}
	first, err := w.deployBy("chat", inPlace, args("a"))
	require.NoError(t, err)
	w.settle("chat")
	second, err := w.deployBy("chat", inPlace, args("b"))
	require.NoError(t, err)
	require.NoError(t, w.stepper.Step(t.Context(), first.GetAppId()))
	// The region now reports all instances as instances of the new version.
	w.putInstance(second, ident.New("ins"), "eu-west-1", windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
	w.putInstance(second, ident.New("ins"), "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
	preview := func() []string {
		res, err := w.rollouts(w.viewer).GetRollout(t.Context(), &windlassv1.GetRolloutRequest{Rollout: second.GetRolloutId()})
		require.NoError(t, err)
		return res.GetRollout().GetPreviewUrls()
	}
	require.Empty(t, preview())
	w.report(first.GetAppId())
	require.NotEmpty(t, preview(), "all of them were replaced")
}

func TestLogs_ComeFromTheRegionOfTheInstance(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	id := w.instance("chat")
	req := &windlassv1.GetLogsRequest{Instance: id}

	_, err := w.deployments(w.viewer).GetLogs(ctx, req)
	refused(t, err, connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, "instance")

	w.agents.answer = func(region string, req *agentv1.Request) ([]byte, error) {
		require.Equal(t, w.regions["us-east-1"], region)
		require.Equal(t, id, req.GetLogs().GetInstanceId())
		require.Equal(t, int32(100), req.GetLogs().GetTailLines())
		return []byte("hello\n"), nil
	}
	res, err := w.deployments(w.viewer).GetLogs(ctx, req)
	require.NoError(t, err)
	require.Equal(t, "hello\n", string(res.GetData()))

	w.agents.answer = func(string, *agentv1.Request) ([]byte, error) { return nil, errors.New("no such instance here") }
	_, err = w.deployments(w.viewer).GetLogs(ctx, req)
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "instance")

	_, err = w.deployments(w.rival).GetLogs(ctx, req)
	refused(t, err, connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "instance")
}
