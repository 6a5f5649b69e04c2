package dispatch

import (
	"encoding/hex"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func desired(edit func(*model.DesiredItem)) model.DesiredItem {
	it := model.DesiredItem{
		Kind: model.KindDeployment, Key: "dep_1", Generation: 3,
		Topology: model.Topology{Replicas: 2, Traceparent: "00-1-2-01"},
		Deployment: model.Deployment{
			ID: "dep_1", WorkspaceID: "ws_1", AppID: "app_1", Version: 7, SpecHash: []byte{1, 2, 3},
			ResolvedImage: "registry.example/echo@sha256:00",
			Spec: &windlassv1.DeploymentSpec{
				Image: "registry.example/echo:v1", Command: []string{"serve"}, Env: map[string]string{"A": "1", "B": "2"},
				Secrets: []*windlassv1.SecretReference{{EnvName: "TOKEN", Secret: "token"}},
			},
		},
		App:            model.AppNames{ProjectID: "prj_1", EnvironmentID: "env_1", Name: "echo"},
		SecretVersions: map[string]int32{"token": 4},
	}
	if edit != nil {
		edit(&it)
	}
	return it
}

// itemFor returns the item that an agent gets for a row.
func itemFor(it model.DesiredItem) (*agentv1.Item, error) {
	w, err := encodeItem(&it, 1, sending{domain: "apps.test"}, new([]byte))
	if err != nil {
		return nil, err
	}
	item := &agentv1.Item{}
	return item, proto.Unmarshal(w.bytes, item)
}

func encoded(t *testing.T, edit func(*model.DesiredItem)) *agentv1.Item {
	t.Helper()
	item, err := itemFor(desired(edit))
	require.NoError(t, err)
	return item
}

// If a release changes a spec hash, every region has drift. If it changes a template hash, every instance is
// replaced. So these values of the first release must never change.
func TestItem_HashesEqualThoseOfEarlierReleases(t *testing.T) {
	item := encoded(t, nil)
	require.Equal(t, "d9fd17b267165e971968d3cc4010543b", hex.EncodeToString(item.SpecHash))
	require.Equal(t, "19cd23925d9cc960802c2fbc58ec8ec6", hex.EncodeToString(item.GetDeployment().GetDeployment().GetTemplateHash()))
}

func TestItem_DisplayNamesAreNotInTheHash(t *testing.T) {
	before := encoded(t, nil)
	named := encoded(t, func(it *model.DesiredItem) { it.App.ProjectName, it.App.EnvironmentName = "chat", "production" })
	state := named.GetDeployment()
	require.Equal(t, int32(7), state.WorkloadVersion)
	require.Equal(t, "dep_1", state.WorkloadKey)
	require.Equal(t, "chat", state.Deployment.ProjectName)
	require.Equal(t, "production", state.Deployment.EnvironmentName)
	require.Equal(t, before.SpecHash, named.SpecHash, "renaming a project must not count as drift")
	require.Equal(t, before.GetDeployment().Deployment.TemplateHash, state.Deployment.TemplateHash)
}

func TestItem_SaysWhetherTheRegionMayRaiseAlone(t *testing.T) {
	policy := func(it *model.DesiredItem) {
		it.RegionID, it.Scaling = "reg_1", &windlassv1.ScalingPolicy{Max: 4, Metrics: []*windlassv1.ScalingMetric{{Target: "5"}}}
		it.Alone.Instances, it.Alone.GPUs = model.Inherit, model.Inherit
	}
	raise := func(ours model.Limits, edits ...func(*model.DesiredItem)) (*agentv1.RaiseAlone, []byte) {
		it := desired(policy)
		for _, edit := range edits {
			edit(&it)
		}
		w, err := encodeItem(&it, 1, sending{limits: ours}, new([]byte))
		require.NoError(t, err)
		item := &agentv1.Item{}
		require.NoError(t, proto.Unmarshal(w.bytes, item))
		return item.GetDeployment().GetDeployment().RaiseAlone, item.SpecHash
	}
	may, hash := raise(model.Limits{})
	require.NotNil(t, may)
	require.Zero(t, may.HeldUntil)
	held, heldHash := raise(model.Limits{}, func(it *model.DesiredItem) {
		it.Alone.Holds = []model.ScalingHold{{RegionID: "reg_2", Until: 9}, {Until: 5}, {RegionID: "reg_1", Until: 7}}
	})
	require.EqualValues(t, 7, held.GetHeldUntil())
	require.Equal(t, hash, heldHash, "a hold makes no drift")

	gpus := func(it *model.DesiredItem) {
		it.Deployment.Spec.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 1}}
	}
	used := func(instances, gpus int64) func(*model.DesiredItem) {
		return func(it *model.DesiredItem) {
			it.Alone.Ceiling = model.Ceiling{Usage: model.Usage{Instances: instances, GPUs: gpus}, CountedAt: 1}
		}
	}
	most := func(ours model.Limits, edits ...func(*model.DesiredItem)) int32 {
		may, _ := raise(ours, edits...)
		return may.GetMaxReplicas()
	}
	require.EqualValues(t, 5, most(model.Limits{Instances: 100}, used(65, 0)), "a tenth of the 35 free instances, and the app's 2 replicas")
	require.EqualValues(t, 4, most(model.Limits{Instances: 100, GPUs: 80}, used(2, 60), gpus))
	require.EqualValues(t, 7, most(model.Limits{GPUs: 5}, used(10, 2), func(it *model.DesiredItem) { it.Alone.Instances = 60 }), "the workspace's own limit")
	may, _ = raise(model.Limits{GPUs: 8})
	require.NotNil(t, may, "the app has no GPUs")
	may, _ = raise(model.Limits{Instances: 8, GPUs: 8}, gpus, func(it *model.DesiredItem) { it.Alone.Instances, it.Alone.GPUs = 0, 0 })
	require.NotNil(t, may, "the workspace has no limit")
	for name, c := range map[string]struct {
		ours model.Limits
		edit func(*model.DesiredItem)
	}{
		"not scaled":                   {edit: func(it *model.DesiredItem) { it.Scaling = nil }},
		"advice":                       {edit: func(it *model.DesiredItem) { it.Scaling.Mode = windlassv1.ScalingPolicy_MODE_ADVISE }},
		"roles of a pool":              {edit: func(it *model.DesiredItem) { it.Scaling.Roles = []*windlassv1.RoleScaling{{Role: "decode"}} }},
		"at zero":                      {edit: func(it *model.DesiredItem) { it.Topology.Replicas = 0 }},
		"closed":                       {edit: func(it *model.DesiredItem) { it.Alone.Closed = true }},
		"full":                         {ours: model.Limits{Instances: 100}, edit: used(100, 0)},
		"a tenth is less than one":     {ours: model.Limits{Instances: 100}, edit: used(91, 0)},
		"GPUs are full":                {ours: model.Limits{GPUs: 100}, edit: func(it *model.DesiredItem) { gpus(it); used(0, 91)(it) }},
		"usage that was never counted": {ours: model.Limits{Instances: 100}},
	} {
		edit := c.edit
		if edit == nil {
			edit = func(*model.DesiredItem) {}
		}
		may, _ := raise(c.ours, edit)
		require.Nil(t, may, name)
	}
}

// A version that differs only in fields that instances do not see has its own spec hash and the same template hash.
func TestItem_OfAnEqualVersionReplacesNothing(t *testing.T) {
	before := encoded(t, nil)
	template := func(it *agentv1.Item) []byte { return it.GetDeployment().GetDeployment().GetTemplateHash() }
	next := func(edit func(*model.Deployment)) *agentv1.Item {
		return encoded(t, func(it *model.DesiredItem) {
			it.Deployment.Version, it.Deployment.SpecHash, it.Deployment.MadeAs = 8, []byte{4, 5, 6}, []byte{1, 2, 3}
			it.Deployment.Spec.Routing = &windlassv1.RoutingPolicy{QueueSize: new(int32(1))}
			edit(&it.Deployment)
		})
	}
	alike := next(func(*model.Deployment) {})
	require.Equal(t, template(before), template(alike))
	require.NotEqual(t, before.SpecHash, alike.SpecHash, "the region gets the new version")
	require.EqualValues(t, 1, alike.GetDeployment().GetDeployment().GetSpec().GetRouting().GetQueueSize())
	require.NotEqual(t, template(before), template(next(func(d *model.Deployment) { d.MadeAs = nil })))
	require.NotEqual(t, template(before), template(next(func(d *model.Deployment) { d.ResolvedImage = "registry.example/echo@sha256:01" })),
		"the tag now resolves to another image")
}

func TestItem_HasATemplateHashForEachRole(t *testing.T) {
	together := false
	roles := func(decode byte, image string) map[string]string {
		item := encoded(t, func(it *model.DesiredItem) {
			made, err := model.EncodeRoleHashes(map[string][]byte{"prefill": {1}, "decode": {decode}})
			require.NoError(t, err)
			it.Deployment.RolesMade, it.Deployment.ResolvedImage = made, image
			it.Deployment.Spec.Roles = []*windlassv1.RoleSpec{{Name: "prefill", Together: together}, {Name: "decode", Image: "decode@sha256:01", Together: together}}
		})
		out := map[string]string{}
		for _, r := range item.GetDeployment().GetDeployment().GetRoleTemplates() {
			out[r.GetRole()] = hex.EncodeToString(r.GetTemplateHash())
		}
		require.Len(t, out, 2)
		return out
	}
	first, other, image := roles(2, "a@sha256:00"), roles(3, "a@sha256:00"), roles(2, "a@sha256:02")
	require.Equal(t, first["prefill"], other["prefill"])
	require.NotEqual(t, first["decode"], other["decode"])
	require.NotEqual(t, first["prefill"], image["prefill"], "the role uses the spec's image")
	require.Equal(t, first["decode"], image["decode"], "the role has its own image")
	require.Empty(t, encoded(t, nil).GetDeployment().GetDeployment().GetRoleTemplates())
	together = true
	first, image = roles(2, "a@sha256:00"), roles(2, "a@sha256:02")
	require.NotEqual(t, first["decode"], image["decode"], "the role changes together with the role that runs the spec's image")
}

// A role's template hash changes exactly if the versions differ in the role. Otherwise, plans would be wrong about
// which instances a version replaces.
func TestItem_TemplateHashesOfRolesChangeWithTheRolesThatDiffer(t *testing.T) {
	const image, other = "registry.example/serve@sha256:01", "registry.example/serve@sha256:02"
	made, err := model.EncodeRoleHashes(map[string][]byte{"prefill": {1}, "decode": {2}})
	require.NoError(t, err)
	version := func(together bool, specImage, prefill, resolved string) (*model.Deployment, map[string][]byte) {
		var d *model.Deployment
		item := encoded(t, func(it *model.DesiredItem) {
			d = &it.Deployment
			d.RolesMade, d.ResolvedImage, d.Spec.Image, d.Spec.Layout = made, resolved, specImage, windlassv1.Layout_LAYOUT_POOLED
			d.Spec.Roles = []*windlassv1.RoleSpec{
				{Name: "prefill", Image: prefill, Together: together},
				{Name: "decode", Image: "decode@sha256:01", Together: together},
			}
		})
		templates := map[string][]byte{}
		for _, r := range item.GetDeployment().GetDeployment().GetRoleTemplates() {
			templates[r.GetRole()] = r.GetTemplateHash()
		}
		return d, templates
	}
	for _, c := range []struct {
		name                     string
		together, was            bool
		image, prefill, resolved string
		differ                   []string
	}{
		{name: "together is set", together: true, image: image, resolved: image, differ: []string{"decode"}},
		{name: "together is removed", was: true, image: image, resolved: image, differ: []string{"decode"}},
		{name: "together stays", together: true, was: true, image: image, resolved: image},
		{name: "the tag resolves to another image", image: image, resolved: other, differ: []string{"prefill"}},
		{name: "another image with together", together: true, was: true, image: image, resolved: other, differ: []string{"prefill", "decode"}},
		{name: "together is set where each role has its own image", together: true, prefill: "prefill@sha256:01"},
		{name: "together is set in a spec without an image", together: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, old := version(c.was, c.image, c.prefill, c.image)
			d, templates := version(c.together, c.image, c.prefill, c.resolved)
			require.Len(t, templates, 2)
			changed, same := d.ChangedRoles(before)
			require.True(t, same)
			require.Equal(t, c.differ, changed)
			for name, hash := range templates {
				require.Equal(t, slices.Contains(changed, name), !slices.Equal(hash, old[name]), name)
			}
		})
	}
}

func TestItem_NamesTheRolesThatMove(t *testing.T) {
	moved := encoded(t, func(it *model.DesiredItem) { it.Topology.Moving = "decode,prefill" })
	require.Equal(t, []string{"decode", "prefill"}, moved.GetDeployment().GetDeployment().GetMovingRoles())
	require.Empty(t, encoded(t, nil).GetDeployment().GetDeployment().GetMovingRoles())
}

func TestWorkload_TakenOverKeepsItsName(t *testing.T) {
	own := encoded(t, nil)
	taken := encoded(t, func(it *model.DesiredItem) { it.Topology.Workload, it.Topology.WorkloadVersion = "dep_0", 6 })
	state := taken.GetDeployment()
	require.Equal(t, "dep_1", taken.Key)
	require.Equal(t, "dep_1", state.Deployment.Id)
	require.Equal(t, int32(7), state.Deployment.Version)
	require.Equal(t, "dep_0", state.WorkloadKey)
	require.Equal(t, int32(6), state.WorkloadVersion)
	require.Equal(t, []string{"FEATURE_IN_PLACE"}, state.RequiredFeatures)
	require.Empty(t, own.GetDeployment().RequiredFeatures)
	require.NotEqual(t, own.SpecHash, taken.SpecHash, "the taken-over workload is part of the spec hash")
	require.Equal(t, own.GetDeployment().Deployment.TemplateHash, state.Deployment.TemplateHash, "the template hash stays, so no instance is replaced")
}

func TestTombstone_NamesItsWorkload(t *testing.T) {
	item := encoded(t, func(it *model.DesiredItem) {
		it.Delete, it.Topology = true, model.Topology{Workload: "dep_0", Transferred: true}
	})
	require.True(t, item.GetDeployment().HandedOver)
	require.Equal(t, "dep_1", item.GetDeployment().Deployment.Id)
	require.Equal(t, "dep_0", item.GetDeployment().WorkloadKey)
}

// Items of one change for several regions share one spec.
func TestItem_SetsTheImageWithoutChangingTheSharedSpec(t *testing.T) {
	row := desired(nil)
	before := proto.CloneOf(row.Deployment.Spec)
	item, err := itemFor(row)
	require.NoError(t, err)
	require.True(t, proto.Equal(before, row.Deployment.Spec), "%v", row.Deployment.Spec)
	want := proto.CloneOf(before)
	want.Image = row.Deployment.ResolvedImage
	got := item.GetDeployment().GetDeployment().GetSpec()
	require.True(t, proto.Equal(want, got), "%v", got)

	row.Deployment.ResolvedImage = ""
	item, err = itemFor(row)
	require.NoError(t, err)
	require.True(t, proto.Equal(before, item.GetDeployment().GetDeployment().GetSpec()), "the item's spec equals the stored spec")
}

func TestTombstone_HoldsIDsOnly(t *testing.T) {
	item := encoded(t, func(it *model.DesiredItem) {
		it.Delete, it.App, it.Topology, it.SecretVersions = true, model.AppNames{}, model.Topology{}, nil
	})
	want := &agentv1.DeploymentState{
		Action: agentv1.DeploymentState_ACTION_DELETE, WorkloadKey: "dep_1",
		Deployment: &agentv1.Deployment{Id: "dep_1", AppId: "app_1", WorkspaceId: "ws_1"},
	}
	require.True(t, proto.Equal(want, item.GetDeployment()), "%v", item)
}

func TestItem_IsReplacedOnlyBySecretsOfItsInstances(t *testing.T) {
	refer := func(refs ...*windlassv1.SecretReference) func(int32) *agentv1.Item {
		return func(version int32) *agentv1.Item {
			return encoded(t, func(it *model.DesiredItem) {
				it.Deployment.Spec.Secrets = refs
				it.SecretVersions = map[string]int32{"registry": version}
			})
		}
	}
	variable := &windlassv1.SecretReference{EnvName: "DOCKER_CONFIG", Secret: "registry"}
	pull := &windlassv1.SecretReference{Secret: "registry", ImagePull: true}
	for _, c := range []struct {
		name     string
		item     func(int32) *agentv1.Item
		replaces bool
	}{
		{"a variable", refer(variable), true},
		{"for pulling the image", refer(pull), false},
		{"both", refer(pull, variable), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			one, two := c.item(1), c.item(2)
			require.NotEqual(t, one.SpecHash, two.SpecHash, "the region gets every new version")
			template := func(it *agentv1.Item) []byte { return it.GetDeployment().Deployment.TemplateHash }
			if c.replaces {
				require.NotEqual(t, template(one), template(two))
			} else {
				require.Equal(t, template(one), template(two))
			}
		})
	}
}

// A region gets only its own desired state. It does not see the names of secrets of other regions.
func TestItem_HasTheSpecOfItsRegion(t *testing.T) {
	in := func(region string, secrets map[string]int32) *agentv1.Item {
		return encoded(t, func(it *model.DesiredItem) {
			it.RegionID, it.SecretVersions = region, secrets
			s := it.Deployment.Spec
			s.Overrides = []*windlassv1.Override{{Labels: map[string]string{"gpu": "l4"}, ExtraArgs: []string{"--tp", "8"}}}
			s.PinnedOverrides = []*windlassv1.PinnedOverride{{Region: "eu", RegionId: "reg_eu", Values: &windlassv1.Override{
				ExtraArgs: []string{"--tp", "8"}, Env: map[string]string{"A": "9"},
				Resources: &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: 8, Pool: "l4"}},
				Secrets:   []*windlassv1.SecretReference{{EnvName: "EXTRA", Secret: "extra"}},
			}}}
		})
	}
	here, there := in("reg_eu", map[string]int32{"token": 4, "extra": 1}), in("reg_us", map[string]int32{"token": 4})
	spec := here.GetDeployment().GetDeployment().GetSpec()
	require.Equal(t, []string{"--tp", "8"}, spec.GetArgs())
	require.Equal(t, map[string]string{"A": "9", "B": "2"}, spec.GetEnv())
	require.Contains(t, here.GetDeployment().GetRequiredFeatures(), "FEATURE_GPU_POOL")
	require.Empty(t, spec.GetOverrides())
	require.Empty(t, spec.GetPinnedOverrides())

	plain := encoded(t, nil)
	require.Equal(t, plain.SpecHash, there.SpecHash, "a region without an override has the same hash as without overrides")
	require.Empty(t, there.GetDeployment().GetRequiredFeatures())
	rotated := in("reg_eu", map[string]int32{"token": 4, "extra": 2})
	require.NotEqual(t, here.GetDeployment().GetDeployment().GetTemplateHash(), rotated.GetDeployment().GetDeployment().GetTemplateHash(),
		"a secret of the region replaces its instances")
}

func TestItem_RouteHasItsPolicy(t *testing.T) {
	it := model.DesiredItem{
		RegionID: "reg_1", Kind: model.KindRoutes, Key: "app_1", Generation: 3, Targets: []model.RouteTarget{{DeploymentID: "dep_1", Weight: 100}},
		Route: model.Route{AppID: "app_1", RegionID: "reg_1", Hosts: []string{"chat.test"}, Generation: 3},
	}
	plain, err := itemFor(it)
	require.NoError(t, err)
	require.Nil(t, plain.GetRoutes().GetPolicy())

	policy := &windlassv1.RoutingPolicy{Retries: new(int32(0))}
	it.Route.Policy = model.EncodeRouting(policy)
	item, err := itemFor(it)
	require.NoError(t, err)
	require.True(t, proto.Equal(policy, item.GetRoutes().GetPolicy()))
	require.NotEqual(t, plain.GetSpecHash(), item.GetSpecHash())

	it.Delete = true
	gone, err := itemFor(it)
	require.NoError(t, err)
	require.Nil(t, gone.GetRoutes().GetPolicy())

	it.Delete, it.Route.Hosts = false, nil
	gone, err = itemFor(it)
	require.NoError(t, err)
	require.Equal(t, []any{"app_1", 0, 0}, []any{gone.GetRoutes().GetAppId(), len(gone.GetRoutes().GetHosts()), len(gone.GetRoutes().GetTargets())})
	it.Route.Hosts = []string{"chat.test"}

	it.Delete, it.Route.Policy = false, []byte{0xff}
	_, err = itemFor(it)
	require.ErrorContains(t, err, "policy of the route of app_1 in reg_1")
}

func TestItem_DoesNotWakeInAClosedRegion(t *testing.T) {
	at := func(change func(*model.Topology)) int32 {
		row := model.Topology{DeploymentID: "dep_1", RegionID: "reg_1", Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED}
		change(&row)
		item, err := itemFor(model.DesiredItem{
			RegionID: "reg_1", Kind: model.KindDeployment, Key: "dep_1", Generation: 3, Topology: row,
			Deployment: model.Deployment{ID: "dep_1", AppID: "app_1", Spec: &windlassv1.DeploymentSpec{
				Routing: &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}},
			}},
		})
		require.NoError(t, err)
		return item.GetDeployment().GetDeployment().GetWake()
	}
	require.Equal(t, int32(1), at(func(*model.Topology) {}))
	require.Zero(t, at(func(r *model.Topology) { r.Replicas = 1 }))
	require.Zero(t, at(func(r *model.Topology) { r.Reason = "RegionClosed" }))
}
