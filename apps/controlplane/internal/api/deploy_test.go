package api_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (h *harness) app(ref string) *windlassv1.App {
	h.t.Helper()
	res, err := h.apps(h.viewer).GetApp(h.t.Context(), &windlassv1.GetAppRequest{App: ref})
	require.NoError(h.t, err)
	return res.GetApp()
}

func (h *harness) version(app string, n int32) *windlassv1.Deployment {
	h.t.Helper()
	res, err := h.deployments(h.viewer).GetDeployment(h.t.Context(), &windlassv1.GetDeploymentRequest{App: app, Version: n})
	require.NoError(h.t, err)
	return res.GetDeployment()
}

// said returns the texts of the app's history, the newest first.
func (h *harness) said(app string) []string {
	h.t.Helper()
	res, err := h.history(h.viewer).ListHistory(h.t.Context(), &windlassv1.ListHistoryRequest{App: app, Page: &windlassv1.PageRequest{Size: 200}})
	require.NoError(h.t, err)
	var what []string
	for _, entry := range res.GetEntries() {
		what = append(what, entry.GetWhat())
	}
	return what
}

func TestDeploy_FirstMakesTheAppWithDefaults(t *testing.T) {
	w := setup(t)
	res := w.deploy("chat")
	require.Equal(t, int32(1), res.GetVersion())
	require.False(t, res.GetUnchanged())
	require.NotEmpty(t, res.GetRolloutId())

	d := w.version("default/production/chat", 1)
	require.Equal(t, res.GetDeploymentId(), d.GetId())
	require.Equal(t, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING, d.GetStatus())
	require.Equal(t, "deploy", d.GetSource())
	s := d.GetSpec()
	require.Equal(t, int32(2), s.GetReplicas())
	require.Equal(t, int32(500), s.GetResources().GetCpuMillicores())
	require.Equal(t, int32(512), s.GetResources().GetMemoryMib())
	require.Equal(t, "http", s.GetPorts()[0].GetName())
	h := s.GetHealthCheck()
	require.Equal(t, "GET /health http", h.GetMethod()+" "+h.GetPath()+" "+h.GetPort())
	require.Equal(t, [4]time.Duration{10 * time.Second, 5 * time.Second, 30 * time.Minute, 30 * time.Second}, [4]time.Duration{
		h.GetInterval().AsDuration(), h.GetTimeout().AsDuration(), h.GetStartupBudget().AsDuration(), s.GetTerminationGrace().AsDuration(),
	})
	require.Equal(t, []int32{3, 2}, []int32{h.GetUnhealthyThreshold(), h.GetHealthyThreshold()})
	require.Equal(t, 10*time.Minute, s.GetProgressDeadline().AsDuration())

	app := w.app("chat")
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_PROGRESSING, app.GetStatus())
	require.Equal(t, res.GetRolloutId(), app.GetRolloutId())

	app = w.settle("chat")
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, app.GetStatus())
	require.Equal(t, int32(1), app.GetLiveVersion())
	require.Equal(t, []int32{4, 4}, []int32{app.GetReplicas(), app.GetReadyReplicas()})
	require.Equal(t, []string{"eu-west-1", "us-east-1"}, app.GetRegions())
	require.True(t, w.version("chat", 1).GetLive())
	rollout, err := w.rollouts(w.viewer).GetRollout(t.Context(), &windlassv1.GetRolloutRequest{Rollout: res.GetRolloutId()})
	require.NoError(t, err)
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED, rollout.GetRollout().GetStatus())
}

func TestDeploy_UnchangedSpecMakesNoVersion(t *testing.T) {
	w := setup(t)
	first := w.deploy("chat", args("a"))
	again := w.deploy("chat", args("a"))
	require.True(t, again.GetUnchanged(), "the version is already in flight")
	require.Equal(t, first.GetDeploymentId(), again.GetDeploymentId())
	require.Equal(t, first.GetRolloutId(), again.GetRolloutId())

	w.settle("chat")
	again = w.deploy("chat", args("a"), func(s *windlassv1.DeploymentSpec) {
		s.VersionLabel, s.Message, s.SourceCommit = "v1", "the same", "abc"
		s.Regions = []string{"eu-west-1", "us-east-1"}
	})
	require.True(t, again.GetUnchanged())
	require.Equal(t, int32(1), w.app("chat").GetLatestVersion())

	scaled := w.deploy("chat", args("a"), replicas(5))
	require.True(t, scaled.GetScaled())
	require.False(t, scaled.GetUnchanged())
	require.Equal(t, int32(1), scaled.GetVersion())
	require.Equal(t, int32(10), w.app("chat").GetReplicas())
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, w.settle("chat").GetStatus())

	// A spec without replicas keeps the app's replicas.
	next := w.deploy("chat", args("b"))
	require.Equal(t, int32(2), next.GetVersion())
	require.Equal(t, int32(5), w.version("chat", 2).GetSpec().GetReplicas())
}

func TestDeploy_SupersedesTheRolloutInFlight(t *testing.T) {
	w := setup(t)
	w.deploy("chat", args("a"))
	w.settle("chat")
	second := w.deploy("chat", args("b"))
	third := w.deploy("chat", args("c"))
	require.Equal(t, int32(3), third.GetVersion())

	d := w.version("chat", 2)
	require.Equal(t, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED, d.GetStatus())
	require.NotZero(t, d.GetEndedAt())
	r, err := w.rollouts(w.viewer).GetRollout(t.Context(), &windlassv1.GetRolloutRequest{Rollout: second.GetRolloutId()})
	require.NoError(t, err)
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED, r.GetRollout().GetStatus())
	require.Equal(t, third.GetRolloutId(), w.app("chat").GetRolloutId())
	require.Contains(t, w.said("chat"), "RolloutSuperseded")

	app := w.settle("chat")
	require.Equal(t, int32(3), app.GetLiveVersion())
	require.Equal(t, int32(1), app.GetPreviousVersion())
}

func TestRollout_EndedByACallIsReportedAfterTheCommit(t *testing.T) {
	var ended []model.Rollout
	w := setup(t, func(c *api.Config) { c.RolloutEnded = func(r model.Rollout) { ended = append(ended, r) } })
	first := w.deploy("chat", args("a"))
	require.Empty(t, ended)
	for range 2 {
		// A repeated call supersedes nothing again.
		_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{
			App: "chat", Spec: echo(args("b")), Mutation: &windlassv1.Mutation{IdempotencyKey: "once"},
		})
		require.NoError(t, err)
	}
	_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(func(s *windlassv1.DeploymentSpec) {
		s.Regions = []string{"nowhere"}
	})})
	require.Error(t, err)
	require.Len(t, ended, 1)
	require.Equal(t, first.GetRolloutId(), ended[0].ID)
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED, ended[0].Status)
	require.NotZero(t, ended[0].FinishedAt)
}

func TestDeploy_OfTheLiveVersionCancelsTheRollout(t *testing.T) {
	w := setup(t)
	w.deploy("chat", args("a"))
	w.settle("chat")
	w.deploy("chat", args("bad"))
	back := w.deploy("chat", args("a"))
	require.True(t, back.GetUnchanged())
	require.Equal(t, int32(1), back.GetVersion())
	require.Equal(t, w.app("chat").GetRolloutId(), back.GetRolloutId(), "the workflow takes the rollout back")
	app := w.settle("chat")
	require.Equal(t, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED, w.version("chat", 2).GetStatus())
	require.Empty(t, app.GetRolloutId())
	require.Equal(t, int32(1), app.GetLiveVersion())
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, app.GetStatus())
}

func TestDeploy_ConcurrentCallsNumberVersionsWithoutGaps(t *testing.T) {
	w := setup(t)
	const n = 12
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { w.deploy("chat", args(fmt.Sprint(i))) })
	}
	group.Wait()
	list, err := w.deployments(w.viewer).ListDeployments(t.Context(), &windlassv1.ListDeploymentsRequest{App: "chat"})
	require.NoError(t, err)
	require.Len(t, list.GetDeployments(), n)
	running := 0
	seen := map[int32]bool{}
	for _, d := range list.GetDeployments() {
		seen[d.GetVersion()] = true
		if d.GetStatus() != windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED {
			running++
		}
	}
	for v := range int32(n) {
		require.True(t, seen[v+1], "version %d", v+1)
	}
	require.Equal(t, 1, running, "all rollouts except the newest are superseded")
	apps, err := w.apps(w.viewer).ListApps(t.Context(), &windlassv1.ListAppsRequest{})
	require.NoError(t, err)
	require.Len(t, apps.GetApps(), 1)
}

func TestScale_SetsReplicasInOneRegionOrInAll(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	_, err := w.apps(w.deployer).CreateApp(ctx, &windlassv1.CreateAppRequest{Name: "chat"})
	require.NoError(t, err)
	_, err = w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 1})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")

	w.deploy("chat")
	w.settle("chat")
	woken := w.woken()
	res, err := w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 3, Region: "eu-west-1"})
	require.NoError(t, err)
	require.Empty(t, woken(), "no step is needed before the region reports")
	require.Eventually(t, func() bool { return slices.Contains(w.wakesDue(), res.GetApp().GetId()) }, time.Minute, 20*time.Millisecond,
		"a region that reports nothing also gets a step")
	require.Equal(t, int32(5), res.GetApp().GetReplicas())
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_PROGRESSING, res.GetApp().GetStatus())
	for _, r := range w.version("chat", 1).GetRegions() {
		require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 3}[r.GetRegion()], r.GetReplicas(), r.GetRegion())
	}
	_, err = w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 3, Region: "mars"})
	refused(t, err, connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_REGION, "region")
	require.Contains(t, detailOf(err).GetFix(), "eu-west-1, us-east-1")

	res, err = w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 0})
	require.NoError(t, err)
	require.Zero(t, res.GetApp().GetReplicas())
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_READY, w.settle("chat").GetStatus())
	// A deploy without replicas keeps 0 replicas.
	w.deploy("chat", args("b"))
	require.Zero(t, w.version("chat", 2).GetSpec().GetReplicas())
}

func TestVariables_ArePinnedAndTheAppsOwnHavePrecedence(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	setEnvironment := func(version int64, variables map[string]string) {
		_, err := w.environments(w.deployer).UpdateEnvironment(ctx, &windlassv1.UpdateEnvironmentRequest{
			Environment: "default/production", Name: "production", Variables: variables, ResourceVersion: version,
		})
		require.NoError(t, err)
	}
	setEnvironment(1, map[string]string{"SHARED": "1", "BOTH": "environment", "GONE": "soon"})
	w.deploy("chat", func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"BOTH": "app", "OWN": "x"} })
	w.settle("chat")
	setEnvironment(2, map[string]string{"SHARED": "2", "BOTH": "other", "NEW": "y"})
	require.Equal(t, map[string]string{"SHARED": "1", "BOTH": "app", "GONE": "soon", "OWN": "x"}, w.version("chat", 1).GetSpec().GetEnv())

	res, err := w.apps(w.deployer).SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{
		App: "chat", Set: map[string]string{"MORE": "z"}, Unset: []string{"OWN"},
	})
	require.NoError(t, err)
	require.Equal(t, int32(2), res.GetVersion())
	d := w.version("chat", 2)
	require.Equal(t, "environment", d.GetSource())
	require.Equal(t, map[string]string{"SHARED": "2", "BOTH": "app", "NEW": "y", "MORE": "z"}, d.GetSpec().GetEnv())
	require.Equal(t, []string{"modelserver"}, d.GetSpec().GetCommand())
	w.settle("chat")

	same, err := w.apps(w.deployer).SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{App: "chat"})
	require.NoError(t, err)
	require.True(t, same.GetUnchanged())

	// A rollback to v1 restores its variables.
	back, err := w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat"})
	require.NoError(t, err)
	require.Equal(t, []int32{3, 1}, []int32{back.GetVersion(), back.GetFromVersion()})
	require.Equal(t, w.version("chat", 1).GetSpec().GetEnv(), w.version("chat", 3).GetSpec().GetEnv())
}

func TestRollback_MakesAVersionWithTheOldConfiguration(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	w.deploy("chat", args("a"))
	w.settle("chat")
	_, err := w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat"})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
	w.deploy("chat", args("b"), replicas(4))
	w.settle("chat")
	_, err = w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat", Version: 9})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")
	_, err = w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat", Version: 2})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")

	res, err := w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat", Version: 1, Message: "b is slow"})
	require.NoError(t, err)
	require.Equal(t, []int32{3, 1}, []int32{res.GetVersion(), res.GetFromVersion()})
	d := w.version("chat", 3)
	require.Equal(t, []string{"a"}, d.GetSpec().GetArgs())
	require.Equal(t, int32(4), d.GetSpec().GetReplicas(), "replicas are the app's, not the version's")
	require.Equal(t, "rollback", d.GetSource())
	again, err := w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat", Version: 1})
	require.NoError(t, err)
	require.Equal(t, res.GetDeploymentId(), again.GetDeploymentId(), "the rollback is already in flight")
	require.Equal(t, int32(3), w.settle("chat").GetLiveVersion())
}

func TestCancel_KeepsTheLiveVersion(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	w.deploy("chat", args("a"))
	w.settle("chat")
	_, err := w.apps(w.deployer).Cancel(ctx, &windlassv1.CancelRequest{App: "chat"})
	refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NOTHING_TO_DO, "")

	second := w.deploy("chat", args("b"))
	res, err := w.apps(w.deployer).Cancel(ctx, &windlassv1.CancelRequest{App: "chat", Why: "wrong one"})
	require.NoError(t, err)
	require.Equal(t, second.GetRolloutId(), res.GetRolloutId())
	again, err := w.apps(w.deployer).Cancel(ctx, &windlassv1.CancelRequest{App: "chat"})
	require.NoError(t, err)
	require.Equal(t, res.GetRolloutId(), again.GetRolloutId())

	require.Equal(t, int32(1), w.settle("chat").GetLiveVersion())
	d := w.version("chat", 2)
	require.Equal(t, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_STOPPED, d.GetStatus())
	require.Contains(t, d.GetMessage(), "wrong one")
}

func TestDeployment_CancelledAndReplacedHasEnded(t *testing.T) {
	w := setup(t)
	w.deploy("chat", args("a"))
	_, err := w.apps(w.deployer).Cancel(t.Context(), &windlassv1.CancelRequest{App: "chat"})
	require.NoError(t, err)
	w.deploy("chat", args("b"))
	require.Equal(t, windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_SUPERSEDED, w.version("chat", 1).GetStatus())
	require.Equal(t, int32(2), w.settle("chat").GetLiveVersion())
}

func TestDeleteApp_LetsNothingStart(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	made := w.deploy("chat")
	w.settle("chat")
	_, err := w.apps(w.deployer).DeleteApp(ctx, &windlassv1.DeleteAppRequest{App: "chat"})
	refused(t, err, connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "")
	res, err := w.apps(w.owner).DeleteApp(ctx, &windlassv1.DeleteAppRequest{App: "chat", Why: "done"})
	require.NoError(t, err)
	require.Equal(t, windlassv1.AppStatus_APP_STATUS_DELETING, res.GetApp().GetStatus())
	_, err = w.apps(w.owner).DeleteApp(ctx, &windlassv1.DeleteAppRequest{App: "chat"})
	require.NoError(t, err, "the call can be repeated")

	for _, call := range []func() error{
		func() error {
			_, err := w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: echo(args("b"))})
			return err
		},
		func() error {
			_, err := w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 1})
			return err
		},
		func() error {
			_, err := w.apps(w.deployer).SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": "b"}})
			return err
		},
		func() error {
			_, err := w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat", Version: 1})
			return err
		},
	} {
		refused(t, call(), connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_APP_DELETING, "app")
	}

	require.Nil(t, w.settle("chat"), "the app is gone")
	history, err := w.history(w.viewer).ListHistory(ctx, &windlassv1.ListHistoryRequest{App: made.GetAppId()})
	require.NoError(t, err, "the history remains")
	require.Equal(t, "AppDeleted", history.GetEntries()[0].GetWhat())
	require.Equal(t, int32(1), w.deploy("chat").GetVersion(), "its name is free")
}

func TestDeploy_RefusesContradictionsBetweenFields(t *testing.T) {
	w := setup(t)
	w.deploy("chat")
	before := w.dump()
	const invalid, validation = connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION
	for name, c := range map[string]struct {
		edit   func(*windlassv1.DeploymentSpec)
		code   connect.Code
		reason windlassv1.ErrorReason
		field  string
	}{
		"unknown region": {
			func(s *windlassv1.DeploymentSpec) { s.Regions = []string{"us-east-1", "mars"} },
			invalid, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_REGION, "spec.regions[1]",
		},
		"unknown secret": {func(s *windlassv1.DeploymentSpec) {
			s.Secrets = []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "hf-token"}}
		}, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_SECRET, "spec.secrets[0].secret"},
		"port name twice": {func(s *windlassv1.DeploymentSpec) {
			s.Ports = []*windlassv1.Port{{Name: "http"}, {Name: "http"}}
		}, invalid, validation, "spec.ports[1].name"},
		"port twice": {func(s *windlassv1.DeploymentSpec) {
			s.Ports = []*windlassv1.Port{{Name: "http", Port: 80}, {Name: "admin", Port: 80}}
		}, invalid, validation, "spec.ports[1].port"},
		"health check of an unknown port": {func(s *windlassv1.DeploymentSpec) {
			s.HealthCheck = &windlassv1.HealthCheck{Port: "grpc"}
		}, invalid, validation, "spec.healthCheck.port"},
		"expected code that does not exist": {func(s *windlassv1.DeploymentSpec) {
			s.HealthCheck = &windlassv1.HealthCheck{ExpectedCodes: []string{"204", "2xx"}}
		}, invalid, validation, "spec.healthCheck.expectedCodes[1]"},
		"expected codes backwards": {func(s *windlassv1.DeploymentSpec) {
			s.HealthCheck = &windlassv1.HealthCheck{ExpectedCodes: []string{"299-200"}}
		}, invalid, validation, "spec.healthCheck.expectedCodes[0]"},
		"minReady above replicas": {
			func(s *windlassv1.DeploymentSpec) { s.Replicas, s.MinReady = proto.Int32(2), 3 },
			invalid, validation, "spec.minReady",
		},
		"reserved variable": {
			func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"PORT": "1"} },
			invalid, validation, `spec.env["PORT"]`,
		},
		"reserved prefix": {
			func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"WINDLASS_APP": "1"} },
			invalid, validation, `spec.env["WINDLASS_APP"]`,
		},
		"variable of a port": {
			func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"PORT_HTTP": "1"} },
			invalid, validation, `spec.env["PORT_HTTP"]`,
		},
		"zero byte": {
			func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"A": "\x00"} },
			invalid, validation, `spec.env["A"]`,
		},
		"a variable longer than programs can have": {
			func(s *windlassv1.DeploymentSpec) { s.Env = map[string]string{"A": strings.Repeat("x", 128<<10-2)} },
			invalid, validation, `spec.env["A"]`,
		},
		"an argument longer than programs can have": {
			func(s *windlassv1.DeploymentSpec) { s.Args = []string{strings.Repeat("\U0001F600", 32<<10)} },
			invalid, validation, "spec.args[0]",
		},
		"a variable twice": {func(s *windlassv1.DeploymentSpec) {
			s.Env = map[string]string{"TOKEN": "1"}
			s.Secrets = []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "hf-token"}}
		}, invalid, validation, "spec.secrets[0].envName"},
		"too many variables": {func(s *windlassv1.DeploymentSpec) {
			s.Env = map[string]string{"A": strings.Repeat("x", 100_000), "B": strings.Repeat("x", 100_000), "C": strings.Repeat("x", 100_000)}
		}, invalid, validation, "spec.env"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: echo(c.edit)})
			refused(t, err, c.code, c.reason, c.field)
		})
	}
	_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "new", Spec: echo(func(s *windlassv1.DeploymentSpec) {
		s.Regions = []string{"mars"}
	})})
	require.Contains(t, detailOf(err).GetFix(), "eu-west-1, us-east-1")
	require.Equal(t, before, w.dump(), "nothing changed, and no app was made")
}

func TestMutations_WakeTheirWorkflow(t *testing.T) {
	w := setup(t)
	woken := w.woken()
	res := w.deploy("chat")
	require.Equal(t, []string{res.GetAppId()}, woken())
}

// woken returns a function that returns the apps that were woken since the call of woken.
func (h *harness) woken() func() []string {
	var woken []string
	var mu sync.Mutex
	h.store.OnCommit(func(c store.Commit) {
		mu.Lock()
		defer mu.Unlock()
		woken = slices.AppendSeq(woken, maps.Keys(c.Woken))
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(woken)
	}
}

// An app whose rollout has not begun has no rows to scale.
func TestReplicas_SetBeforeTheFirstVersionAreKept(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *harness) {
		w.deploy("chat", replicas(1))
		res := w.deploy("chat", replicas(3))
		require.Equal(t, int32(2), res.GetVersion())
		require.Equal(t, int32(2), w.deploy("chat", replicas(3)).GetVersion(), "only the replicas differ")
		app := w.settle("chat")
		require.Equal(t, int32(2), app.GetLiveVersion())
		require.Equal(t, int32(6), app.GetReplicas())
		require.True(t, w.deploy("chat", replicas(2)).GetScaled(), "the rollout has begun")
		require.Equal(t, int32(4), w.settle("chat").GetReplicas())
	})
}
