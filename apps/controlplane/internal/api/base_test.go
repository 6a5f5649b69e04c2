package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// appChange is a call that makes a version and keeps all other settings of the app.
type appChange struct {
	name string
	make func(*harness) error
	// shows reports whether the new version and its app have the change.
	shows func(*windlassv1.DeploymentSpec, *windlassv1.App) bool
}

func appChanges(t *testing.T) []appChange {
	ctx := t.Context()
	env := func(name string) appChange {
		return appChange{
			"variable " + name,
			func(w *harness) error {
				_, err := w.apps(w.deployer).SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{name: "1"}})
				return err
			},
			func(s *windlassv1.DeploymentSpec, _ *windlassv1.App) bool { return s.GetEnv()[name] == "1" },
		}
	}
	secret := func(name string) appChange {
		return appChange{
			"secret " + name,
			func(w *harness) error {
				_, err := w.environments(w.deployer).SetSecret(ctx, &windlassv1.SetSecretRequest{Environment: "default/production", Name: name, Value: "new"})
				return err
			},
			func(s *windlassv1.DeploymentSpec, _ *windlassv1.App) bool {
				for _, ref := range s.GetSecrets() {
					if ref.GetSecret() == name {
						return ref.GetVersion() == 2
					}
				}
				return false
			},
		}
	}
	return []appChange{
		env("A"), env("B"), secret("one"), secret("two"),
		{
			"variables of the environment and B",
			func(w *harness) error {
				e, err := w.environments(w.owner).GetEnvironment(ctx, &windlassv1.GetEnvironmentRequest{Environment: "default/production"})
				if err != nil {
					return err
				}
				_, err = w.environments(w.owner).UpdateEnvironment(ctx, &windlassv1.UpdateEnvironmentRequest{
					Environment: e.GetEnvironment().GetId(), Name: "production", Variables: map[string]string{"SHARED": "1"},
					ResourceVersion: e.GetEnvironment().GetResourceVersion(),
				})
				if err != nil {
					return err
				}
				return env("B").make(w)
			},
			func(s *windlassv1.DeploymentSpec, _ *windlassv1.App) bool {
				return s.GetEnv()["SHARED"] == "1" && s.GetEnv()["B"] == "1"
			},
		},
		{
			"scale",
			func(w *harness) error {
				_, err := w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 3})
				return err
			},
			func(_ *windlassv1.DeploymentSpec, a *windlassv1.App) bool { return a.GetReplicas() == 6 },
		},
		{
			"deploy",
			func(w *harness) error {
				_, err := w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "chat", Spec: withSecrets(echo(args("new")))})
				return err
			},
			func(s *windlassv1.DeploymentSpec, _ *windlassv1.App) bool { return s.GetArgs()[0] == "new" },
		},
	}
}

func withSecrets(s *windlassv1.DeploymentSpec) *windlassv1.DeploymentSpec {
	s.Secrets = []*windlassv1.SecretReference{{EnvName: "ONE", Secret: "one"}, {EnvName: "TWO", Secret: "two"}}
	return s
}

// setupBase makes an app whose first version is live.
func setupBase(t *testing.T) *harness {
	w := setup(t)
	for _, name := range []string{"one", "two"} {
		_, err := w.environments(w.deployer).SetSecret(t.Context(), &windlassv1.SetSecretRequest{Environment: "default/production", Name: name, Value: "old"})
		require.NoError(t, err)
	}
	_, err := w.apps(w.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: withSecrets(echo(args("old")))})
	require.NoError(t, err)
	w.settle("chat")
	return w
}

// newestSpec returns the spec of the app's newest version.
func (h *harness) newestSpec(app string) *windlassv1.DeploymentSpec {
	h.t.Helper()
	res, err := h.deployments(h.viewer).GetDeployment(h.t.Context(), &windlassv1.GetDeploymentRequest{App: app, Version: h.app(app).GetLatestVersion()})
	require.NoError(h.t, err)
	return res.GetDeployment().GetSpec()
}

func TestChange_KeepsTheChangeInFlight(t *testing.T) {
	for i, first := range appChanges(t) {
		for j, second := range appChanges(t) {
			// A deploy sets the whole app. It keeps only the replicas and the environment's variables.
			if i == j || second.name == "deploy" && first.shows(&windlassv1.DeploymentSpec{Env: map[string]string{"A": "1", "B": "1", "SHARED": "1"}}, &windlassv1.App{}) {
				continue
			}
			t.Run(first.name+", then "+second.name, func(t *testing.T) {
				w := setupBase(t)
				require.NoError(t, first.make(w))
				require.NoError(t, second.make(w))
				w.settle("chat")
				app, spec := w.app("chat"), w.newestSpec("chat")
				require.True(t, first.shows(spec, app), "%s: %v", first.name, spec)
				require.True(t, second.shows(spec, app), "%s: %v", second.name, spec)
				require.Equal(t, app.GetLatestVersion(), app.GetLiveVersion())
			})
		}
	}
}

func TestChange_LeavesOutAnAbortedChange(t *testing.T) {
	for _, second := range appChanges(t)[1:6] {
		t.Run(second.name, func(t *testing.T) {
			w := setupBase(t)
			w.deploy("chat", args("bad"))
			_, err := w.apps(w.deployer).Cancel(t.Context(), &windlassv1.CancelRequest{App: "chat"})
			require.NoError(t, err)
			require.NoError(t, second.make(w))
			w.settle("chat")
			app := w.app("chat")
			live, err := w.deployments(w.viewer).GetDeployment(t.Context(), &windlassv1.GetDeploymentRequest{App: "chat", Version: app.GetLiveVersion()})
			require.NoError(t, err)
			require.Equal(t, []string{"old"}, live.GetDeployment().GetSpec().GetArgs())
			require.True(t, second.shows(live.GetDeployment().GetSpec(), app))
		})
	}
}
