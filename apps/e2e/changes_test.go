package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func reasonOf(err error) windlassv1.ErrorReason { return rpc.ReasonOf(err) }

func testVariablesAndSecrets(t *testing.T, s *stack) {
	const app = "variables"
	project := must(t, s.owner.projects.CreateProject, &windlassv1.CreateProjectRequest{Mutation: mutation(), Name: "sealed"}).Project
	name := "sealed/production/" + app
	first, second := "first-"+ident.New("s"), "second-"+ident.New("s")
	require.Equal(t, int32(1), must(t, s.owner.environments.SetSecret, &windlassv1.SetSecretRequest{
		Mutation: mutation(), Environment: "sealed/production", Name: "api-token", Value: first,
	}).Secret.Version)

	v1 := must(t, s.owner.apps.Deploy, &windlassv1.DeployRequest{Mutation: mutation(), App: name, Spec: spec(func(d *windlassv1.DeploymentSpec) {
		d.Env = map[string]string{"GREETING": "hello"}
		d.Secrets = []*windlassv1.SecretReference{{EnvName: "API_TOKEN", Secret: "api-token"}}
	})})
	s.waitEnv(t, app, 2, map[string]string{"GREETING": "hello", "API_TOKEN": first})

	set := must(t, s.owner.apps.SetEnvironment, &windlassv1.SetEnvironmentRequest{
		Mutation: mutation(), App: name, Set: map[string]string{"COLOUR": "green"}, Message: "turn green",
	})
	require.Equal(t, int32(2), set.Version)
	s.waitGone(t, v1.DeploymentId)
	s.waitEnv(t, app, 2, map[string]string{"GREETING": "hello", "COLOUR": "green", "API_TOKEN": first})
	one := must(t, s.owner.deployments.GetDeployment, &windlassv1.GetDeploymentRequest{Deployment: v1.DeploymentId}).Deployment
	two := must(t, s.owner.deployments.GetDeployment, &windlassv1.GetDeploymentRequest{Deployment: set.DeploymentId}).Deployment
	require.Equal(t, one.Spec.Command, two.Spec.Command)
	require.Equal(t, one.Spec.Image, two.Spec.Image)
	require.Equal(t, one.Spec.Args, two.Spec.Args)

	before := s.runningOf(app)
	rotated := must(t, s.owner.environments.SetSecret, &windlassv1.SetSecretRequest{
		Mutation: mutation(), Environment: "sealed/production", Name: "api-token", Value: second,
	})
	require.Equal(t, int32(2), rotated.Secret.Version)
	require.Equal(t, []string{v1.AppId}, rotated.AppIds)
	s.waitEnv(t, app, 2, map[string]string{"GREETING": "hello", "COLOUR": "green", "API_TOKEN": second})
	// A process that is about to end has no environment, so it does not count as running.
	s.eventually(t, "no instance has the old value", func(context.Context) error {
		for _, p := range before {
			if p.alive() {
				return fmt.Errorf("it still runs: %s", p)
			}
		}
		return nil
	})
	s.eventually(t, "the version with the new value is live", func(ctx context.Context) error {
		resp, err := s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: name})
		if err != nil {
			return err
		}
		if resp.App.Status != windlassv1.AppStatus_APP_STATUS_READY || resp.App.LiveVersion != 3 {
			return fmt.Errorf("%v", resp.App)
		}
		return nil
	})
	must(t, s.owner.environments.ListSecrets, &windlassv1.ListSecretsRequest{Environment: "sealed/production"})
	s.requireSecret(t, name, first, second)

	_, err := s.owner.environments.DeleteSecret(t.Context(), &windlassv1.DeleteSecretRequest{Mutation: mutation(), Environment: "sealed/production", Name: "api-token"})
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_IN_USE, reasonOf(err), "%v", err)
	must(t, s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: name})
	s.waitGoneApp(t, name, app)
	must(t, s.owner.environments.DeleteSecret, &windlassv1.DeleteSecretRequest{Mutation: mutation(), Environment: "sealed/production", Name: "api-token"})
	must(t, s.owner.projects.DeleteProject, &windlassv1.DeleteProjectRequest{Mutation: mutation(), Project: project.Id})
}

// waitEnv waits until n processes of the app run, and all have the variables want.
func (s *stack) waitEnv(t *testing.T, app string, n int, want map[string]string) {
	t.Helper()
	s.eventually(t, fmt.Sprintf("%d processes of %s with %d variables", n, app, len(want)), func(context.Context) error {
		running := s.runningOf(app)
		if len(running) != n {
			return fmt.Errorf("%d run:\n%s", len(running), describe(running))
		}
		for _, p := range running {
			for name, value := range want {
				if p.env[name] != value {
					return fmt.Errorf("%s has another %s", p, name)
				}
			}
		}
		return nil
	})
}

// waitGoneApp waits until a deleted app does not exist any more.
func (s *stack) waitGoneApp(t *testing.T, name, app string) {
	t.Helper()
	s.eventually(t, name+" forgotten", func(ctx context.Context) error {
		if left := s.runningOf(app); len(left) > 0 {
			return fmt.Errorf("it still runs:\n%s", describe(left))
		}
		if _, err := s.owner.apps.GetApp(ctx, &windlassv1.GetAppRequest{App: name}); connect.CodeOf(err) != connect.CodeNotFound {
			return errors.Join(errors.New("the app still exists"), err)
		}
		return nil
	})
}

// requireSecret asserts that the values are in the environment of the app's processes, and nowhere else where
// a person could read them.
func (s *stack) requireSecret(t *testing.T, app string, values ...string) {
	t.Helper()
	var texts []string
	for _, list := range []any{
		must(t, s.owner.deployments.ListDeployments, &windlassv1.ListDeploymentsRequest{App: app}),
		must(t, s.owner.deployments.ListInstances, &windlassv1.ListInstancesRequest{App: app, IncludeTerminated: true}),
		must(t, s.owner.history.ListHistory, &windlassv1.ListHistoryRequest{App: app}),
		must(t, s.owner.history.ListAudit, &windlassv1.ListAuditRequest{Page: &windlassv1.PageRequest{Size: 500}}),
		must(t, s.owner.environments.ListSecrets, &windlassv1.ListSecretsRequest{Environment: "sealed/production"}),
	} {
		texts = append(texts, fmt.Sprintf("%+v", list))
	}
	for _, p := range processesOf(s.dir) {
		texts = append(texts, strings.Join(p.argv, " "))
	}
	for _, text := range texts {
		for _, value := range values {
			require.NotContains(t, text, value)
		}
	}
	// Every file of the control plane, the agents and the database.
	require.NoError(t, filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // the file was removed meanwhile
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // the file was removed meanwhile
		}
		for _, value := range values {
			if strings.Contains(string(content), value) {
				return fmt.Errorf("%s holds the value of a secret", path)
			}
		}
		return nil
	}))
}

func testInFlight(t *testing.T, s *stack) {
	const app = "inflight"
	v1 := s.deployReady(t, app, spec(label("v1")))
	before := s.runningOf(app)

	slow := spec(label("v2"), args("--load-time", "10m"))
	v2 := s.deploy(t, app, slow)
	s.eventually(t, "v2 runs in one region", func(context.Context) error {
		if n := len(s.instances(func(p process) bool { return p.deployment() == v2.DeploymentId })); n != 1 {
			return fmt.Errorf("%d instances", n)
		}
		return nil
	})
	cancelled := must(t, s.owner.apps.Cancel, &windlassv1.CancelRequest{Mutation: mutation(), App: named(app), Why: "too slow"})
	require.Equal(t, v2.RolloutId, cancelled.RolloutId)
	s.waitGone(t, v2.DeploymentId)
	rollout := must(t, s.owner.rollouts.GetRollout, &windlassv1.GetRolloutRequest{Rollout: v2.RolloutId}).Rollout
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED, rollout.Status)
	s.waitLive(t, app, 1)
	requireSame(t, before, s.runningOf(app), "cancelling touched the live version")

	v3 := s.deploy(t, app, spec(label("v3"), args("--load-time", "10m")))
	v4 := s.deploy(t, app, spec(label("v4")))
	s.waitLive(t, app, v4.Version)
	s.waitGone(t, v3.DeploymentId)
	s.waitGone(t, v1.DeploymentId)
	rollout = must(t, s.owner.rollouts.GetRollout, &windlassv1.GetRolloutRequest{Rollout: v3.RolloutId}).Rollout
	require.Equal(t, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED, rollout.Status)

	// Nothing new starts once the app is being deleted.
	must(t, s.owner.apps.DeleteApp, &windlassv1.DeleteAppRequest{Mutation: mutation(), App: v1.AppId})
	_, err := s.owner.apps.Deploy(t.Context(), &windlassv1.DeployRequest{Mutation: mutation(), App: v1.AppId, Spec: spec(label("v5"))})
	require.Error(t, err)
	require.Contains(t, []windlassv1.ErrorReason{
		windlassv1.ErrorReason_ERROR_REASON_APP_DELETING, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND,
	}, reasonOf(err), "%v", err)
	s.waitGoneApp(t, v1.AppId, app)
}

func testIdempotency(t *testing.T, s *stack) {
	const app = "once"
	req := &windlassv1.DeployRequest{Mutation: mutation(), App: named(app), Spec: spec(regions(us))}
	first := must(t, s.owner.apps.Deploy, req)
	for range 3 {
		again := must(t, s.owner.apps.Deploy, req)
		require.Equal(t, first.DeploymentId, again.DeploymentId)
		require.Equal(t, first.RolloutId, again.RolloutId)
	}
	_, err := s.owner.apps.Deploy(t.Context(), &windlassv1.DeployRequest{Mutation: req.Mutation, App: named(app), Spec: spec(regions(eu))})
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_IDEMPOTENCY_MISMATCH, reasonOf(err), "%v", err)
	s.waitLive(t, app, 1)
	list := must(t, s.owner.deployments.ListDeployments, &windlassv1.ListDeploymentsRequest{App: named(app)})
	require.Len(t, list.Deployments, 1)
	require.Len(t, s.runningOf(app), 1)
}

// testCrowd lets several users change one app at the same time, independently of each other. In the end one
// version is live, and nothing is left of the other versions, in the API or as processes.
func testCrowd(t *testing.T, s *stack) {
	const app = "crowd"
	s.deployReady(t, app, spec(label("first")))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i := range uint64(8) {
		rnd := rand.New(rand.NewPCG(i, 1))
		wg.Go(func() { s.user(ctx, app, rnd, 1, 200*time.Millisecond) })
	}
	wg.Wait()
	d := s.deploy(t, app, spec(label("last")))
	got := s.waitLive(t, app, d.Version)
	s.eventually(t, "only the last version is left", func(ctx context.Context) error {
		list, err := s.owner.deployments.ListDeployments(ctx, &windlassv1.ListDeploymentsRequest{App: got.Id, Page: &windlassv1.PageRequest{Size: 500}})
		if err != nil {
			return err
		}
		for _, d := range list.Deployments {
			if d.Status < windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_READY {
				return fmt.Errorf("v%d is %s", d.Version, d.Status)
			}
		}
		for _, p := range s.runningOf(app) {
			if p.env["WINDLASS_VERSION"] != fmt.Sprint(got.LiveVersion) {
				return fmt.Errorf("v%d is live, and this runs: %s", got.LiveVersion, p)
			}
		}
		rollouts, err := s.owner.rollouts.ListRollouts(ctx, &windlassv1.ListRolloutsRequest{App: got.Id, Page: &windlassv1.PageRequest{Size: 500}})
		if err != nil {
			return err
		}
		for _, r := range rollouts.Rollouts {
			if r.Status == windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING {
				return fmt.Errorf("the rollout of v%d is under way", r.Version)
			}
		}
		return nil
	})
}
