package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// setupUnchanged makes an app with two versions, and sets variables, a secret, a pin, a freeze, a domain and a quota.
func setupUnchanged(t *testing.T) *harness {
	w := setup(t)
	_, err := w.environments(w.deployer).SetSecret(t.Context(), &windlassv1.SetSecretRequest{Environment: "default/production", Name: "tok", Value: "one"})
	require.NoError(t, err)
	w.deploy("chat", args("a"), withSecret("tok"))
	w.settle("chat")
	w.deploy("chat", args("b"), withSecret("tok"))
	w.settle("chat")
	return w
}

func TestUnchanged_SettingTheSameValueChangesNothing(t *testing.T) {
	w := setupUnchanged(t)
	ctx := t.Context()
	environment, err := w.environments(w.owner).GetEnvironment(ctx, &windlassv1.GetEnvironmentRequest{Environment: "default/production"})
	require.NoError(t, err)
	project, err := w.projects(w.owner).CreateProject(ctx, &windlassv1.CreateProjectRequest{Name: "second"})
	require.NoError(t, err)
	shared, err := w.regionService(w.operator).CreateRegion(ctx, &windlassv1.CreateRegionRequest{Name: "shared-1", Platform: true})
	require.NoError(t, err)

	again := map[string]func() (unchanged bool, err error){
		"SetSecret": func() (bool, error) {
			res, err := w.environments(w.deployer).SetSecret(ctx, &windlassv1.SetSecretRequest{Environment: "default/production", Name: "tok", Value: "two"})
			require.Equal(t, int32(2), res.GetSecret().GetVersion())
			return res.GetUnchanged(), err
		},
		"SetPreset": func() (bool, error) {
			res, err := w.presets(w.owner).SetPreset(ctx, &windlassv1.SetPresetRequest{Name: "ember", Definition: ember()})
			return res.GetUnchanged(), err
		},
		"SetEnvironment": func() (bool, error) {
			res, err := w.apps(w.deployer).SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": "1"}})
			return res.GetUnchanged(), err
		},
		"Scale": func() (bool, error) {
			res, err := w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 3})
			return res.GetUnchanged(), err
		},
		"Scale of a region": func() (bool, error) {
			res, err := w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Region: "us-east-1", Replicas: 4})
			return res.GetUnchanged(), err
		},
		"Deploy": func() (bool, error) {
			res, err := w.apps(w.deployer).Deploy(ctx, &windlassv1.DeployRequest{App: "other", Spec: echo(args("c"))})
			return res.GetUnchanged(), err
		},
		"UpdateApp": func() (bool, error) {
			res, err := w.apps(w.deployer).UpdateApp(ctx, &windlassv1.UpdateAppRequest{
				App: "chat", Description: "it chats", ResourceVersion: w.app("chat").GetResourceVersion(),
			})
			return res.GetUnchanged(), err
		},
		"UpdateEnvironment": func() (bool, error) {
			e, err := w.environments(w.owner).GetEnvironment(ctx, &windlassv1.GetEnvironmentRequest{Environment: environment.GetEnvironment().GetId()})
			require.NoError(t, err)
			res, err := w.environments(w.owner).UpdateEnvironment(ctx, &windlassv1.UpdateEnvironmentRequest{
				Environment: e.GetEnvironment().GetId(), Name: e.GetEnvironment().GetName(), Variables: map[string]string{"B": "2"},
				ResourceVersion: e.GetEnvironment().GetResourceVersion(),
			})
			return res.GetUnchanged(), err
		},
		"UpdateProject": func() (bool, error) {
			p, err := w.projects(w.owner).GetProject(ctx, &windlassv1.GetProjectRequest{Project: project.GetProject().GetId()})
			require.NoError(t, err)
			res, err := w.projects(w.owner).UpdateProject(ctx, &windlassv1.UpdateProjectRequest{
				Project: p.GetProject().GetId(), Name: "third", ResourceVersion: p.GetProject().GetResourceVersion(),
			})
			return res.GetUnchanged(), err
		},
		"UpdateWorkspace": func() (bool, error) {
			ws, err := w.workspaces(w.owner).GetWorkspace(ctx, &windlassv1.GetWorkspaceRequest{})
			require.NoError(t, err)
			res, err := w.workspaces(w.owner).UpdateWorkspace(ctx, &windlassv1.UpdateWorkspaceRequest{
				Workspace: ws.GetWorkspace().GetId(), Name: "acme-2", ResourceVersion: ws.GetWorkspace().GetResourceVersion(),
			})
			return res.GetUnchanged(), err
		},
		"UpdateRegion": func() (bool, error) {
			r, err := w.regionService(w.owner).GetRegion(ctx, &windlassv1.GetRegionRequest{Region: "us-east-1"})
			require.NoError(t, err)
			res, err := w.regionService(w.owner).UpdateRegion(ctx, &windlassv1.UpdateRegionRequest{
				Region: "us-east-1", Labels: map[string]string{"gpu": "l4"}, ResourceVersion: r.GetRegion().GetResourceVersion(),
			})
			return res.GetUnchanged(), err
		},
		"SetFreeze": func() (bool, error) {
			res, err := w.freezes(w.owner).SetFreeze(ctx, &windlassv1.SetFreezeRequest{
				Name: "nights", Reason: "sleep", OnStart: windlassv1.Freeze_ON_START_HOLD, App: "frozen",
				TimeZone: "UTC", Weekly: []*windlassv1.WeeklyWindow{{Start: "22:00", End: "06:00"}},
			})
			return res.GetUnchanged(), err
		},
		"SetSignInRule": func() (bool, error) {
			res, err := w.members(w.owner).SetSignInRule(ctx, &windlassv1.SetSignInRuleRequest{Rule: &windlassv1.SignInRule{
				Name: "ml", Role: windlassv1.Role_ROLE_VIEWER, Conditions: []*windlassv1.ClaimCondition{{Claim: "groups", Value: "ml"}},
			}})
			return res.GetUnchanged(), err
		},
		"SetQuota": func() (bool, error) {
			q, err := w.workspaces(w.owner).GetQuota(ctx, &windlassv1.GetQuotaRequest{})
			require.NoError(t, err)
			res, err := w.workspaces(w.owner).SetQuota(ctx, &windlassv1.SetQuotaRequest{
				Own: &windlassv1.Limits{Instances: new(int64(500))}, ResourceVersion: q.GetQuota().GetResourceVersion(),
			})
			return res.GetUnchanged(), err
		},
		"SetTier": func() (bool, error) {
			list, err := w.workspaces(w.operator).ListTiers(ctx, &windlassv1.ListTiersRequest{})
			require.NoError(t, err)
			req := &windlassv1.SetTierRequest{Name: "basic", Features: []windlassv1.Feature{windlassv1.Feature_FEATURE_CANARY}}
			for _, tier := range list.GetTiers() {
				if tier.GetName() == "basic" {
					req.ResourceVersion = tier.GetResourceVersion()
				}
			}
			res, err := w.workspaces(w.operator).SetTier(ctx, req)
			return res.GetUnchanged(), err
		},
		"SetFeatures": func() (bool, error) {
			res := w.setFeatures("", nil, []windlassv1.Feature{windlassv1.Feature_FEATURE_CANARY})
			return res.GetUnchanged(), nil
		},
		"PinVersion": func() (bool, error) {
			res, err := w.apps(w.deployer).PinVersion(ctx, &windlassv1.PinVersionRequest{App: "pinned", Version: 1, Weight: 10})
			return res.GetUnchanged(), err
		},
		"AddDomain": func() (bool, error) {
			res, err := w.routes(w.deployer).AddDomain(ctx, &windlassv1.AddDomainRequest{App: "chat", Domain: "chat.example.com"})
			return res.GetUnchanged(), err
		},
		"GrantRegion": func() (bool, error) {
			res, err := w.regionService(w.operator).GrantRegion(ctx, &windlassv1.GrantRegionRequest{Region: shared.GetRegion().GetId(), Workspace: w.workspace})
			return res.GetUnchanged(), err
		},
		"PauseRollout": func() (bool, error) {
			res, err := w.rollouts(w.deployer).PauseRollout(ctx, &windlassv1.PauseRolloutRequest{App: "paused"})
			return res.GetUnchanged(), err
		},
		"Cancel": func() (bool, error) {
			res, err := w.apps(w.deployer).Cancel(ctx, &windlassv1.CancelRequest{App: "cancelled"})
			return res.GetUnchanged(), err
		},
	}
	const words = "TestControl_EachWordSaysWhatItDidInEachState"
	elsewhere := map[string]string{
		"ResumeRollout": words, "RetryRollout": words, "SkipBake": words, "Promote": words, "Approve": words,
		"SetProtection":           "TestProtection_IsSetByThoseWhoMayAndIsInTheAudit",
		"SetNotificationEndpoint": "TestNotificationEndpoint_IsSetChangedAndRemoved",
	}
	for _, m := range methods() {
		name := string(m.Name())
		if m.Output().Fields().ByName("unchanged") != nil && elsewhere[name] == "" {
			require.Contains(t, again, name, "its answer has the field unchanged: add a repeated call here")
		}
	}
	for name, set := range again {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "PinVersion":
				w.deploy("pinned", args("a"))
				w.settle("pinned")
				w.deploy("pinned", args("b"))
				w.settle("pinned")
			case "SetFreeze":
				w.deploy("frozen")
			case "PauseRollout":
				_, err := w.deployBy("paused", &windlassv1.RolloutPolicy{}, args("a"))
				require.NoError(t, err)
				w.settle("paused")
				_, err = w.deployBy("paused", &windlassv1.RolloutPolicy{Waves: []*windlassv1.Wave{{BakeTime: durationpb.New(3600e9)}}}, args("b"))
				require.NoError(t, err)
				w.settle("paused")
			case "Cancel":
				w.deploy("cancelled")
			}
			unchanged, err := set()
			require.NoError(t, err)
			require.False(t, unchanged, "the first call changes something")
			w.settle("chat")
			before := w.dump()
			unchanged, err = set()
			require.NoError(t, err)
			require.True(t, unchanged)
			require.Equal(t, before, w.dump())
		})
	}
}

func TestSetQuota_WarnsOwnersThatTheyCannotRaiseALimitAgain(t *testing.T) {
	w := setup(t)
	own := func(key string, n, version int64) (*windlassv1.SetQuotaResponse, error) {
		return w.workspaces(key).SetQuota(t.Context(), &windlassv1.SetQuotaRequest{
			Workspace: w.workspace, Own: &windlassv1.Limits{Instances: &n}, ResourceVersion: version,
		})
	}
	q, err := w.workspaces(w.owner).GetQuota(t.Context(), &windlassv1.GetQuotaRequest{})
	require.NoError(t, err)
	res, err := own(w.operator, 10, q.GetQuota().GetResourceVersion())
	require.NoError(t, err)
	require.Empty(t, res.GetWarnings(), "an operator may raise it")
	res, err = own(w.owner, 3, res.GetQuota().GetResourceVersion())
	require.NoError(t, err)
	require.Equal(t, []string{"limit instances goes from 10 to 3: only an operator of the platform can raise it again"}, res.GetWarnings())
}
