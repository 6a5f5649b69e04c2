package api_test

import (
	"crypto/sha256"
	"slices"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	overrideConflict = windlassv1.ErrorReason_ERROR_REASON_OVERRIDE_CONFLICT
	withoutEffect    = windlassv1.ErrorReason_ERROR_REASON_OVERRIDE_WITHOUT_EFFECT
)

func overrides(all ...*windlassv1.Override) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Overrides = all }
}

func inRegions(names ...string) *windlassv1.Override { return &windlassv1.Override{Regions: names} }

func with(o *windlassv1.Override, edit func(*windlassv1.Override)) *windlassv1.Override {
	edit(o)
	return o
}

func sized(o *windlassv1.Override, n int32) *windlassv1.Override {
	return with(o, func(o *windlassv1.Override) { o.Replicas = new(n) })
}

func extra(o *windlassv1.Override, args ...string) *windlassv1.Override {
	return with(o, func(o *windlassv1.Override) { o.ExtraArgs = args })
}

// label sets the labels of a region of acme.
func (h *harness) label(region string, labels map[string]string) {
	h.t.Helper()
	ctx := h.t.Context()
	got, err := h.regionService(h.owner).GetRegion(ctx, &windlassv1.GetRegionRequest{Region: region})
	require.NoError(h.t, err)
	_, err = h.regionService(h.owner).UpdateRegion(ctx, &windlassv1.UpdateRegionRequest{
		Region: region, Labels: labels, ResourceVersion: got.GetRegion().GetResourceVersion(),
	})
	require.NoError(h.t, err)
}

// sizes returns the replicas of a version by name of region.
func (h *harness) sizes(app string, version int32) map[string]int32 {
	h.t.Helper()
	out := map[string]int32{}
	for _, r := range h.version(app, version).GetRegions() {
		if r.GetStatus() <= windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED {
			out[r.GetRegion()] = r.GetReplicas()
		}
	}
	return out
}

// desired returns the desired state of a version in a region.
func (h *harness) desired(app string, version int32, region string) model.DesiredItem {
	h.t.Helper()
	id := h.version(app, version).GetId()
	var items []model.DesiredItem
	require.NoError(h.t, h.store.Snapshot(h.t.Context(), func(tx store.Tx) (err error) {
		items, err = tx.DesiredItems(model.KindDeployment, map[string][]string{h.regions[region]: {id}})
		return err
	}))
	require.Len(h.t, items, 1)
	return items[0]
}

func onBoth(t *testing.T, test func(*testing.T, *harness)) {
	for database, open := range map[string]func(*testing.T) store.Store{"memory": newStore, "MariaDB": newDatabase} {
		t.Run(database, func(t *testing.T) { test(t, setupOn(t, open(t))) })
	}
}

func TestOverrides_ArePartOfTheVersionWithoutReplicas(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		w.label("us-east-1", map[string]string{"tier": "large"})
		w.label("eu-west-1", map[string]string{"tier": "small"})
		small := func() *windlassv1.Override {
			return extra(&windlassv1.Override{Labels: map[string]string{"tier": "small"}}, "--tp", "8")
		}
		one := w.deploy("chat", replicas(2), overrides(sized(small(), 1)))
		require.Equal(t, int32(3), w.settle("chat").GetReplicas())
		require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 1}, w.sizes("chat", 1))

		// The same values in another form.
		res := w.deploy("chat", replicas(2), overrides(extra(sized(inRegions("eu-west-1"), 1), "--tp", "8")))
		require.True(t, res.GetUnchanged(), "%v", res)
		// Other replicas, in one region or in all regions.
		res = w.deploy("chat", replicas(2), overrides(sized(small(), 3)))
		require.True(t, res.GetScaled())
		require.Equal(t, one.GetDeploymentId(), res.GetDeploymentId())
		require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 3}, w.sizes("chat", 1))
		res = w.deploy("chat", replicas(4), overrides(sized(small(), 3), sized(inRegions("us-east-1"), 5)))
		require.True(t, res.GetScaled())
		require.Equal(t, map[string]int32{"us-east-1": 5, "eu-west-1": 3}, w.sizes("chat", 1))
		res = w.deploy("chat", replicas(4), overrides(small()))
		require.True(t, res.GetScaled())
		require.Equal(t, map[string]int32{"us-east-1": 4, "eu-west-1": 4}, w.sizes("chat", 1))

		// Labels select regions when a version is made. Later changes of labels do not change the version.
		w.settle("chat")
		w.label("us-east-1", map[string]string{"tier": "small"})
		require.Len(t, w.version("chat", 1).GetSpec().GetPinnedOverrides(), 1)
		require.Equal(t, int32(2), w.deploy("chat", replicas(4), overrides(small())).GetVersion())
		require.Len(t, w.version("chat", 2).GetSpec().GetPinnedOverrides(), 2)
		require.Equal(t, small().GetLabels(), w.version("chat", 2).GetSpec().GetOverrides()[0].GetLabels(), "the labels of the file are kept for display")
		require.Equal(t, int32(3), w.deploy("chat", replicas(4), overrides(extra(inRegions("eu-west-1"), "--tp", "4"))).GetVersion())
		require.Equal(t, int32(4), w.deploy("chat", replicas(4)).GetVersion(), "removing an override is also a change")
	})
}

func TestScaling_IsKeptUntilAFileChangesIt(t *testing.T) {
	for name, policy := range map[string]*windlassv1.RolloutPolicy{"at once": nil, "by waves": {MaxSurge: "100%"}} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, w *harness) {
				ctx := t.Context()
				deploy := func(edit ...func(*windlassv1.DeploymentSpec)) {
					t.Helper()
					_, err := w.deployBy("chat", policy, edit...)
					require.NoError(t, err)
					w.settle("chat")
				}
				eu := func(n int32) func(*windlassv1.DeploymentSpec) { return overrides(sized(inRegions("eu-west-1"), n)) }
				deploy(replicas(2), eu(5))
				require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 5}, w.sizes("chat", 1))

				_, err := w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 7, Region: "eu-west-1"})
				require.NoError(t, err)
				w.settle("chat")
				_, err = w.apps(w.deployer).SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": "b"}})
				require.NoError(t, err)
				w.settle("chat")
				require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 7}, w.sizes("chat", 2))
				_, err = w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat", Version: 1})
				require.NoError(t, err)
				w.settle("chat")
				require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 7}, w.sizes("chat", 3))

				deploy(args("x"), replicas(2), eu(5))
				require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 5}, w.sizes("chat", 4), "the file says 5")
				deploy(args("y"), overrides(sized(inRegions("us-east-1"), 3)))
				require.Equal(t, map[string]int32{"us-east-1": 3, "eu-west-1": 5}, w.sizes("chat", 5), "the file does not set the other region")
				_, err = w.apps(w.deployer).Scale(ctx, &windlassv1.ScaleRequest{App: "chat", Replicas: 1})
				require.NoError(t, err)
				w.settle("chat")
				require.Equal(t, map[string]int32{"us-east-1": 1, "eu-west-1": 1}, w.sizes("chat", 5), "scaling without a region sets all regions")
				deploy(args("z"), replicas(2))
				require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 2}, w.sizes("chat", 6))
			})
		})
	}
}

func TestReplicas_OfANewVersionApplyWhereNothingRuns(t *testing.T) {
	for name, policy := range map[string]*windlassv1.RolloutPolicy{"at once": nil, "by waves": {MaxSurge: "100%"}} {
		t.Run(name, func(t *testing.T) {
			w := setup(t)
			ctx := t.Context()
			own := overrides(extra(sized(inRegions("eu-west-1"), 5), "x"))
			_, err := w.deployBy("chat", policy, replicas(2), own)
			require.NoError(t, err)
			// Before the version is live anywhere.
			_, err = w.apps(w.deployer).SetEnvironment(ctx, &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": "b"}})
			require.NoError(t, err)
			w.settle("chat")
			require.Equal(t, map[string]int32{"us-east-1": 2, "eu-west-1": 5}, w.sizes("chat", 2))

			_, err = w.deployBy("chat", policy, replicas(3), func(s *windlassv1.DeploymentSpec) { s.Regions = []string{"us-east-1"} })
			require.NoError(t, err)
			w.settle("chat")
			_, err = w.apps(w.deployer).Rollback(ctx, &windlassv1.RollbackRequest{App: "chat", Version: 2})
			require.NoError(t, err)
			w.settle("chat")
			require.Equal(t, map[string]int32{"us-east-1": 3, "eu-west-1": 5}, w.sizes("chat", 4))
			// The override has other args there, and no replicas.
			_, err = w.deployBy("chat", policy, overrides(extra(inRegions("eu-west-1"), "y")))
			require.NoError(t, err)
			w.settle("chat")
			require.Equal(t, map[string]int32{"us-east-1": 3, "eu-west-1": 5}, w.sizes("chat", 5))
		})
	}
}

func TestOverrides_ApplyFromARegionsFirstRow(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		w.label("eu-west-1", map[string]string{"tier": "small"})
		small := extra(sized(&windlassv1.Override{Labels: map[string]string{"tier": "small"}}, 1), "--tp", "8")
		w.label("us-east-1", map[string]string{"tier": "small"})
		only := func(s *windlassv1.DeploymentSpec) { s.Regions = []string{"us-east-1"} }
		w.connected(0)
		w.deploy("chat", replicas(3), overrides(small), only)
		w.settle("chat")
		w.deploy("chat", replicas(3), overrides(small))
		app := w.app("chat").GetId()
		require.NoError(t, w.stepper.Step(t.Context(), app))
		for range 20 {
			if n, begun := w.sizes("chat", 2)["eu-west-1"]; begun {
				require.Equal(t, int32(1), n, "in its first row")
				break
			}
			w.report(app)
			require.NoError(t, w.stepper.Step(t.Context(), app))
		}
		w.settle("chat")
		require.Equal(t, map[string]int32{"us-east-1": 1, "eu-west-1": 1}, w.sizes("chat", 2))
	})
}

func TestOverrides_SecretsApplyOnlyInTheirRegion(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		ctx := t.Context()
		own := with(inRegions("eu-west-1"), func(o *windlassv1.Override) {
			o.Secrets = []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "eu-token"}}
		})
		w.setSecret("token", "one")
		_, err := w.deployBy("chat", nil, withSecret("token"), overrides(own))
		refused(t, err, connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_UNKNOWN_SECRET, "spec.overrides[0].secrets[0].secret")
		w.setSecret("eu-token", "two")
		w.deploy("chat", withSecret("token"), overrides(own))
		w.settle("chat")
		require.Equal(t, map[string]int32{"token": 1}, w.desired("chat", 1, "us-east-1").SecretVersions)
		require.Equal(t, map[string]int32{"eu-token": 1}, w.desired("chat", 1, "eu-west-1").SecretVersions)

		require.Equal(t, []string{w.app("chat").GetId()}, w.setSecret("eu-token", "three").GetAppIds())
		require.Equal(t, map[string]int32{"eu-token": 1}, w.desired("chat", 1, "eu-west-1").SecretVersions, "the running version keeps its secrets")
		w.settle("chat")
		require.Equal(t, map[string]int32{"token": 1}, w.desired("chat", 2, "us-east-1").SecretVersions)
		require.Equal(t, map[string]int32{"eu-token": 2}, w.desired("chat", 2, "eu-west-1").SecretVersions)
		_, err = w.environments(w.deployer).DeleteSecret(ctx, &windlassv1.DeleteSecretRequest{Environment: "production", Name: "eu-token"})
		require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_IN_USE, detailOf(err).GetReason(), "%v", err)
	})
}

func TestOverrides_AreShownByAPlan(t *testing.T) {
	onBoth(t, func(t *testing.T, w *harness) {
		eu := func(n, gpus int32) func(*windlassv1.DeploymentSpec) {
			return overrides(with(sized(inRegions("eu-west-1"), n), func(o *windlassv1.Override) {
				o.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: gpus, Pool: "h100"}}
				o.Env = map[string]string{"KEY": "hush"}
			}))
		}
		w.connected(16)
		p := w.planned("chat", nil, h100s(1), replicas(2), eu(3, 4))
		require.True(t, p.GetWouldRun(), "%v", p.GetFindings())
		require.Equal(t, int64(2+12), p.GetUsageAfter().GetGpus(), "a quota counts the GPUs of each region")
		for _, r := range p.GetRegions() {
			want := map[string][2]int32{"us-east-1": {1, 2}, "eu-west-1": {4, 12}}[r.GetRegion()]
			require.Equal(t, want, [2]int32{r.GetGpu().GetCount(), r.GetGpusPeak()}, r.GetRegion())
		}
		w.deploy("chat", h100s(1), replicas(2), eu(3, 4))
		require.Equal(t, int64(14), w.quota().GetUsage().GetGpus())
		w.settle("chat")
		require.Equal(t, int64(14), w.quota().GetUsage().GetGpus())

		changes := func(p *windlassv1.PlanDeployResponse) (out []string) {
			for _, c := range p.GetChanges() {
				require.NotContains(t, c.GetOld()+c.GetNew(), "hush")
				out = append(out, c.GetPath()+" "+c.GetOld()+" -> "+c.GetNew())
			}
			return out
		}
		p = w.planned("chat", nil, h100s(1), replicas(2), eu(5, 4))
		require.Equal(t, outcomeScaled, p.GetOutcome())
		require.Equal(t, []string{`regions["eu-west-1"].replicas 3 -> 5`}, changes(p))
		p = w.planned("chat", nil, h100s(1), replicas(2), eu(2, 4))
		require.Equal(t, []string{`regions["eu-west-1"].replicas 3 -> 2`}, changes(p), "the override is removed, so the region gets the spec's replicas")
		p = w.planned("chat", nil, h100s(1), replicas(2), eu(3, 2))
		require.Equal(t, []string{`regions["eu-west-1"].resources.gpu.count 4 -> 2`}, changes(p))
		p = w.planned("chat", nil, h100s(1), replicas(2))
		require.Contains(t, changes(p), `regions["eu-west-1"].env["KEY"]  -> `)

		w.connected(2)
		all := &windlassv1.RolloutPolicy{MaxSurge: "100%", Waves: []*windlassv1.Wave{{MaxParallel: 32}}}
		_, err := w.deployBy("chat", all, h100s(1), replicas(2), eu(3, 4), args("new"))
		refused(t, err, connect.CodeFailedPrecondition, noCapacity, "spec.overrides")
		require.ErrorContains(t, err, "region eu-west-1 needs 12 more")
		require.NotContains(t, err.Error(), "us-east-1")
		_, err = w.deployBy("cpu", nil, replicas(2), eu(3, 4))
		refused(t, err, connect.CodeFailedPrecondition, noCapacity, "spec.overrides")
	})
}

func TestPlan_ReplicasThatWereScaledAreNoChange(t *testing.T) {
	w := setup(t)
	w.deploy("chat", replicas(2), overrides(sized(inRegions("eu-west-1"), 1)))
	w.settle("chat")
	_, err := w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 3, Region: "eu-west-1"})
	require.NoError(t, err)
	w.settle("chat")
	p := w.planned("chat", nil, replicas(2), overrides(sized(inRegions("eu-west-1"), 3)))
	require.Equal(t, outcomeUnchanged, p.GetOutcome())
	require.Empty(t, p.GetChanges(), "the version began with 1, and has 3 now")
	p = w.planned("chat", nil, replicas(2), overrides(sized(inRegions("eu-west-1"), 1)))
	require.Equal(t, outcomeScaled, p.GetOutcome())
	require.Len(t, p.GetChanges(), 1)
	require.Equal(t, []string{`regions["eu-west-1"].replicas`, "3", "1"}, []string{p.GetChanges()[0].GetPath(), p.GetChanges()[0].GetOld(), p.GetChanges()[0].GetNew()})
}

func TestOverrides_InvalidAreRefused(t *testing.T) {
	w := setup(t)
	w.label("eu-west-1", map[string]string{"tier": "small", "gpu": "l4"})
	labelled := func(key, value string) *windlassv1.Override {
		return &windlassv1.Override{Labels: map[string]string{key: value}}
	}
	before := w.dump()
	for name, c := range map[string]struct {
		overrides []*windlassv1.Override
		reason    windlassv1.ErrorReason
		field     string
	}{
		"without a region":            {[]*windlassv1.Override{sized(inRegions(), 1)}, validation, "spec.overrides[0]"},
		"by names and labels":         {[]*windlassv1.Override{with(sized(inRegions("eu-west-1"), 1), func(o *windlassv1.Override) { o.Labels = map[string]string{"a": "b"} })}, validation, "spec.overrides[0].labels"},
		"without values":              {[]*windlassv1.Override{inRegions("eu-west-1")}, withoutEffect, "spec.overrides[0]"},
		"of a region without the app": {[]*windlassv1.Override{sized(inRegions("eu-west-1", "mars"), 1)}, validation, "spec.overrides[0].regions[1]"},
		"of a region twice":           {[]*windlassv1.Override{sized(inRegions("eu-west-1"), 1), extra(inRegions("eu-west-1"), "x")}, overrideConflict, "spec.overrides[1].regions[0]"},
		"args twice":                  {[]*windlassv1.Override{extra(with(inRegions("eu-west-1"), func(o *windlassv1.Override) { o.Args = []string{"a"} }), "x")}, validation, "spec.overrides[0].extraArgs"},
		"labels without a region":     {[]*windlassv1.Override{sized(labelled("tier", "huge"), 1)}, withoutEffect, "spec.overrides[0].labels"},
		"the spec's own value":        {[]*windlassv1.Override{sized(inRegions("eu-west-1"), 2)}, withoutEffect, "spec.overrides[0]"},
		"two selectors that differ":   {[]*windlassv1.Override{sized(labelled("tier", "small"), 3), sized(labelled("gpu", "l4"), 4)}, overrideConflict, "spec.overrides[1].replicas"},
		"a variable that is taken":    {[]*windlassv1.Override{with(inRegions("eu-west-1"), func(o *windlassv1.Override) { o.Env = map[string]string{"PORT": "1"} })}, validation, `spec.overrides[0].env["PORT"]`},
		"a variable of a port":        {[]*windlassv1.Override{with(inRegions("eu-west-1"), func(o *windlassv1.Override) { o.Env = map[string]string{"PORT_HTTP": "1"} })}, validation, "spec.overrides"},
		"a value and a secret": {[]*windlassv1.Override{with(inRegions("eu-west-1"), func(o *windlassv1.Override) {
			o.Env = map[string]string{"A": "1"}
			o.Secrets = []*windlassv1.SecretReference{{EnvName: "A", Secret: "a"}}
		})}, validation, "spec.overrides[0].secrets[0].envName"},
		"a secret that pulls": {[]*windlassv1.Override{with(inRegions("eu-west-1"), func(o *windlassv1.Override) {
			o.Secrets = []*windlassv1.SecretReference{{Secret: "a", ImagePull: true}}
		})}, validation, "spec.overrides[0].secrets[0].imagePull"},
		"more shared memory than any":   {[]*windlassv1.Override{with(inRegions("eu-west-1"), func(o *windlassv1.Override) { o.Resources = &windlassv1.Resources{ShmMib: 4096} })}, validation, "spec.overrides"},
		"pinned overrides in a request": {nil, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			edit := func(s *windlassv1.DeploymentSpec) {
				s.Overrides = c.overrides
				if c.overrides == nil {
					s.PinnedOverrides = []*windlassv1.PinnedOverride{{Region: "eu-west-1", RegionId: w.regions["eu-west-1"], Values: sized(inRegions(), 9)}}
				}
			}
			p := w.planned("chat", nil, replicas(2), edit)
			if c.overrides == nil {
				require.Equal(t, int64(4), p.GetUsageAfter().GetInstances(), "only the control plane sets pinned overrides")
				return
			}
			_, err := w.deployBy("chat", nil, replicas(2), edit)
			refused(t, err, connect.CodeInvalidArgument, c.reason, c.field)
			require.NotEmpty(t, detailOf(err).GetField())
			require.False(t, p.GetWouldRun())
			require.True(t, slices.ContainsFunc(p.GetFindings(), func(f *windlassv1.PlanFinding) bool {
				return f.GetReason() == c.reason && f.GetField() == c.field
			}), "%v", p.GetFindings())
			require.Equal(t, before, w.dump())
		})
	}
}

// If a release changed the hash of an unchanged spec, every deploy would make a new version.
func TestOverrides_SpecWithoutOverridesKeepsItsHash(t *testing.T) {
	w := setup(t)
	w.deploy("chat", args("a"))
	var d model.Deployment
	require.NoError(t, w.store.View(t.Context(), func(tx store.Tx) (err error) {
		d, err = tx.GetDeployment(w.workspace, w.version("chat", 1).GetId())
		return err
	}))
	plain := proto.CloneOf(d.Spec)
	plain.Replicas = nil
	slices.Sort(plain.Regions)
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(plain)
	require.NoError(t, err)
	sum := sha256.Sum256(b)
	require.Equal(t, sum[:], d.SpecHash)
}
