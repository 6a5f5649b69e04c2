package appspec

import (
	"fmt"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/preset"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const pair = `command: "serve" regions: "eu" roles {name: "prefill" instances: 2} roles {name: "decode" entry: true starts_after: "prefill"}`

func parsed(t *testing.T, text string) *windlassv1.DeploymentSpec {
	t.Helper()
	s := &windlassv1.DeploymentSpec{}
	require.NoError(t, prototext.Unmarshal([]byte(text), s))
	return WithDefaults(s)
}

func TestRoles_RefusalHasFieldAndFix(t *testing.T) {
	digest := "@sha256:1111111111111111111111111111111111111111111111111111111111111111"
	for _, c := range []struct{ name, more, field, message string }{
		{"a pool of replicas", `layout: LAYOUT_POOLED replicas: 2`, "spec.replicas", "a region has one pool"},
		{"a pool with minReady", `layout: LAYOUT_POOLED min_ready: 1`, "spec.minReady", "every role has all its instances"},
		{"an order without a pool", `update {order: ORDER_COHERENT}`, "spec.update", "only the roles of a pool"},
		{"whenFull without a pool", `update {when_full: WHEN_FULL_WAIT}`, "spec.update", "only the roles of a pool"},
		{"a sequence without an order", `layout: LAYOUT_POOLED update {sequence: "decode"}`, "spec.update.sequence", "order coherent has no sequence"},
		{"a sequence of another order", `layout: LAYOUT_POOLED update {order: ORDER_PARALLEL sequence: "decode"}`, "spec.update.sequence", "order parallel has no sequence"},
		{"a sequence with an unknown role", `layout: LAYOUT_POOLED update {order: ORDER_SEQUENTIAL sequence: "decode" sequence: "router"}`, "spec.update.sequence[1]", "no role \"router\""},
		{"a sequence with a role twice", `layout: LAYOUT_POOLED update {order: ORDER_SEQUENTIAL sequence: "decode" sequence: "decode"}`, "spec.update.sequence[1]", "named twice"},
		{"instances by region without a pool", `overrides {regions: "eu" roles {name: "decode" instances: 2}}`, "spec.overrides[0].roles[0].instances", "in every region"},
		{"a name twice", `roles {name: "decode"}`, "spec.roles[2].name", "named twice"},
		{"two entries", `roles {name: "router" entry: true}`, "spec.roles[2].entry", "both the entry role"},
		{"several hosts with a cold start", `routing {cold_start {}} roles {name: "big" hosts: 2}`, "spec.routing.coldStart", "role \"big\" have 2 hosts"},
		{"several hosts on one node", `model_cache {mount_path: "/m" claim {size_gib: 1 single_node: true}} roles {name: "big" hosts: 2}`, "spec.modelCache.claim.singleNode", "role \"big\" have 2 hosts"},
		{"a role together with none", `roles {name: "router" together: true}`, "spec.roles[2].together", "no other role changes together"},
		{"stable slots of a pool in the default order", `layout: LAYOUT_POOLED roles {name: "s" slots: SLOTS_STABLE}`, "spec.update.order", "order coherent starts instances of a second version"},
		{"stable slots when the pool is full", `layout: LAYOUT_POOLED update {order: ORDER_PARALLEL when_full: WHEN_FULL_REPLACE_IN_PLACE} roles {name: "s" slots: SLOTS_STABLE}`, "spec.update.whenFull", "always stops before"},
		{"after an unknown role", `roles {name: "r" starts_after: "x"}`, "spec.roles[2].startsAfter[0]", "not another role"},
		{"after itself", `roles {name: "r" starts_after: "r"}`, "spec.roles[2].startsAfter[0]", "not another role"},
		{"in a circle", `roles {name: "a" starts_after: "b"} roles {name: "b" starts_after: "a"}`, "spec.roles[2].startsAfter", "in a circle"},
		{"a tag", `image: "x:1" roles {name: "r" image: "router:2"}`, "spec.roles[2].image", "has a tag"},
		{"a variable of a secret", `secrets {env_name: "KEY" secret: "k"} roles {name: "r" env {key: "KEY" value: "v"}}`, `spec.roles[2].env["KEY"]`, "a secret sets variable KEY"},
		{"a port's variable", `ports {name: "http"} roles {name: "r" env {key: "PORT_HTTP" value: "1"}}`, `spec.roles[2].env["PORT_HTTP"]`, "to the number of port"},
		{"a taken variable", `roles {name: "r" env {key: "WINDLASS_ROLE" value: "v"}}`, `spec.roles[2].env["WINDLASS_ROLE"]`, "taken"},
		{"args in all roles", `overrides {regions: "eu" extra_args: "--x"}`, "spec.overrides[0].extraArgs", "several roles"},
		{"resources in all roles", `overrides {regions: "eu" resources {memory_mib: 9}}`, "spec.overrides[0].resources", "several roles"},
		{"an override of an unknown role", `overrides {regions: "eu" roles {name: "x" args: "a"}}`, "spec.overrides[0].roles[0].name", "no role"},
		{"an override without a change", `overrides {regions: "eu" replicas: 1 roles {name: "decode"}}`, "spec.overrides[0].roles[0]", "changes nothing"},
		{"an override with a role twice", `overrides {regions: "eu" roles {name: "decode" args: "a"} roles {name: "decode" args: "b"}}`, "spec.overrides[0].roles[1].name", "twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Check(parsed(t, pair+" "+c.more), "spec")
			require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
			require.Contains(t, apierr.Message(err), c.message)
			require.Equal(t, c.field, rpc.DetailOf(err).GetField())
		})
	}
	require.NoError(t, Check(parsed(t, pair+` layout: LAYOUT_REPLICAS roles {name: "router" hosts: 1 slots: SLOTS_ANY image: "router`+digest+`"}`), "spec"))
	require.NoError(t, Check(parsed(t, pair+` roles {name: "s" slots: SLOTS_STABLE}`), "spec"))
	require.NoError(t, Check(parsed(t, pair+` layout: LAYOUT_POOLED replicas: 100 overrides {regions: "eu" roles {name: "decode" instances: 2}}`), "spec"))
	require.NoError(t, Check(parsed(t, pair+` layout: LAYOUT_POOLED roles {name: "big" hosts: 2 instances: 2}`), "spec"))
	many := Check(parsed(t, `command: "serve" regions: "eu" roles {name: "shard" hosts: 2 instances: 2}`), "spec")
	require.Equal(t, "spec.roles[0].instances", rpc.DetailOf(many).GetField())
	require.Equal(t, "Leave instances out, and raise replicas.", rpc.DetailOf(many).GetFix())
	single := parsed(t, `command: "serve" regions: "eu" layout: LAYOUT_POOLED roles {name: "main"}`)
	require.Equal(t, "spec.layout", rpc.DetailOf(Check(single, "spec")).GetField())
	one := `command: "serve" regions: "eu" roles {name: "main"} overrides {regions: "eu" roles {name: "main" args: "a"}}`
	require.Equal(t, "spec.overrides[0].roles[0]", rpc.DetailOf(Check(parsed(t, one), "spec")).GetField())
}

func TestRoles_DefaultsAreFilledIn(t *testing.T) {
	s := parsed(t, `command: "x" resources {memory_mib: 700} roles {name: "a"} roles {name: "b" hosts: 1 slots: SLOTS_ANY resources {gpu {count: 1}}}`)
	a, b := s.GetRoles()[0], s.GetRoles()[1]
	require.True(t, a.GetEntry(), "the first role")
	require.False(t, b.GetEntry())
	require.EqualValues(t, 1, a.GetInstances())
	require.Equal(t, windlassv1.Layout_LAYOUT_REPLICAS, s.GetLayout())
	require.EqualValues(t, 500, b.GetResources().GetCpuMillicores())
	require.EqualValues(t, 700, b.GetResources().GetMemoryMib())
	require.Zero(t, b.GetHosts())
	require.Zero(t, b.GetSlots())

	// The hash of a spec with one role is the same as in releases without several roles.
	one := parsed(t, `command: "x" layout: LAYOUT_REPLICAS roles {name: "a" entry: true hosts: 1}`)
	plain := parsed(t, `command: "x" roles {name: "a"}`)
	require.True(t, proto.Equal(one, plain), one)
}

func TestRoles_ServeMakesOneRole(t *testing.T) {
	in := &windlassv1.DeploymentSpec{
		Serve: &windlassv1.Serve{Engine: "vllm", Model: "org/model"},
		Roles: []*windlassv1.RoleSpec{{Name: "a"}, {Name: "b"}},
	}
	_, findings := Expand(in, preset.Builtin())
	var fields []string
	for _, f := range findings {
		if f.Code == "SeveralRoles" {
			fields = append(fields, f.Field)
		}
	}
	require.Equal(t, []string{"/roles"}, fields)
}

func TestServe_MakesServersOnSeveralHosts(t *testing.T) {
	ask := func(engine string) *windlassv1.DeploymentSpec {
		return &windlassv1.DeploymentSpec{
			Serve: &windlassv1.Serve{Engine: engine, Model: "hf://org/model"}, Regions: []string{"us-east-1"},
			Resources: &windlassv1.Resources{MemoryMib: 32768, Gpu: &windlassv1.Gpu{Count: 8}},
			Roles:     []*windlassv1.RoleSpec{{Name: "shard", Hosts: 2}},
		}
	}
	for engine, want := range map[string]string{
		"vllm":   "--tensor-parallel-size 16 --distributed-executor-backend mp --nnodes 2 --node-rank $(WINDLASS_RANK) --master-addr $(WINDLASS_LEADER)",
		"sglang": "--tp-size 16 --nnodes 2 --node-rank $(WINDLASS_RANK) --dist-init-addr $(WINDLASS_LEADER):20000",
	} {
		made, findings := Expand(ask(engine), preset.Builtin())
		require.False(t, preset.HasErrors(findings), "%v", findings)
		require.Contains(t, strings.Join(made.GetArgs(), " "), want)
		require.NoError(t, protovalidate.Validate(made))
		require.NoError(t, Check(WithDefaults(made), "spec"))
	}
	for code, change := range map[string]func(*windlassv1.DeploymentSpec){
		"HostsUnsupported": func(s *windlassv1.DeploymentSpec) { s.Serve.Engine = "tgi" },
		"CommandTaken":     func(s *windlassv1.DeploymentSpec) { s.Command = []string{"/opt/vllm"} },
	} {
		s := ask("vllm")
		change(s)
		_, findings := Expand(s, preset.Builtin())
		require.NotEmpty(t, findings)
		require.Equal(t, code, findings[0].Code)
	}
}

func TestScaling_OfSeveralRolesIsMeasuredAtGateways(t *testing.T) {
	s := parsed(t, pair)
	for metric, refused := range map[windlassv1.ScalingMetric_Type]bool{
		windlassv1.ScalingMetric_TYPE_QUEUE: true, windlassv1.ScalingMetric_TYPE_KV_CACHE: true,
		windlassv1.ScalingMetric_TYPE_CPU: true, windlassv1.ScalingMetric_TYPE_MEMORY: true,
		windlassv1.ScalingMetric_TYPE_IN_FLIGHT: false, windlassv1.ScalingMetric_TYPE_REQUESTS_PER_SECOND: false,
	} {
		target := "50"
		if metric == windlassv1.ScalingMetric_TYPE_KV_CACHE {
			target = "0.5"
		}
		p := &windlassv1.ScalingPolicy{Max: 3, Metrics: []*windlassv1.ScalingMetric{
			{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "8"}, {Type: metric, Target: target},
		}}
		if metric == windlassv1.ScalingMetric_TYPE_IN_FLIGHT {
			p.Metrics = p.Metrics[:1]
		}
		err := CheckScaling(p, s, "scaling")
		require.Equal(t, refused, err != nil, "%s: %v", metric, err)
		if refused {
			require.Equal(t, "scaling.metrics[1].type", rpc.DetailOf(err).GetField())
		}
	}
}

// The hash of each role shows which instances a change replaces.
func TestRolesMade_ChangesWithTheRole(t *testing.T) {
	made := func(text string, live *model.Deployment) *model.Deployment {
		s := parsed(t, text)
		hashes, err := RolesMade(s, live)
		require.NoError(t, err)
		return &model.Deployment{Spec: s, RolesMade: hashes}
	}
	base := made(pair, nil)
	require.Len(t, base.RoleHashes(), 2)
	changed := func(text string) (names []string) {
		next := made(text, base)
		for _, r := range next.Spec.GetRoles() {
			if string(next.RoleHashes()[r.GetName()]) != string(base.RoleHashes()[r.GetName()]) {
				names = append(names, r.GetName())
			}
		}
		return names
	}
	require.Empty(t, changed(pair))
	require.Equal(t, []string{"decode"}, changed(`command: "serve" regions: "eu" roles {name: "prefill" instances: 2} roles {name: "decode" entry: true starts_after: "prefill" args: "--x"}`))
	require.Empty(t, changed(`command: "serve" regions: "eu" roles {name: "prefill" instances: 3 entry: true} roles {name: "decode"}`), "instances do not see the number of instances")
	require.Equal(t, []string{"prefill", "decode"}, changed(pair+` env {key: "A" value: "b"}`))
	require.Empty(t, made(`command: "x" roles {name: "a"}`, nil).RolesMade)

	// A rotated secret replaces instances of every role, so that a region names all of them as roles that move.
	const token = ` secrets {env_name: "TOKEN" secret: "token" version: %d}`
	before, rotated := made(pair+fmt.Sprintf(token, 1), nil), parsed(t, pair+fmt.Sprintf(token, 2))
	before.Spec.Layout, rotated.Layout = windlassv1.Layout_LAYOUT_POOLED, windlassv1.Layout_LAYOUT_POOLED
	hashes, err := RolesMade(rotated, before)
	require.NoError(t, err)
	moving, same := (&model.Deployment{Spec: rotated, RolesMade: hashes}).ChangedRoles(before)
	require.True(t, same)
	require.Equal(t, []string{"prefill", "decode"}, moving)

	// A role that is made alike keeps its hash, even if a release with another hash function computed it.
	other, err := model.EncodeRoleHashes(map[string][]byte{"prefill": {1}, "decode": {2}})
	require.NoError(t, err)
	old := &model.Deployment{Spec: base.Spec, RolesMade: other}
	require.Equal(t, map[string][]byte{"prefill": {1}, "decode": {2}}, made(pair, old).RoleHashes())
}

func TestRolesMade_RolesTogetherChangeAsOne(t *testing.T) {
	text := func(together, decode, router string) string {
		return fmt.Sprintf(`command: "serve" regions: "eu" roles {name: "prefill" %s} roles {name: "decode" %s %s} roles {name: "router" %s}`, together, together, decode, router)
	}
	made := func(text string, live *model.Deployment) *model.Deployment {
		s := parsed(t, text)
		require.NoError(t, Check(s, "spec"))
		hashes, err := RolesMade(s, live)
		require.NoError(t, err)
		return &model.Deployment{Spec: s, RolesMade: hashes}
	}
	changed := func(d, live *model.Deployment) (names []string) {
		for _, r := range d.Spec.GetRoles() {
			if string(d.RoleHashes()[r.GetName()]) != string(live.RoleHashes()[r.GetName()]) {
				names = append(names, r.GetName())
			}
		}
		return names
	}
	const yes, other = "together: true", `args: "--x"`
	apart := made(text("", "", ""), nil)
	require.Equal(t, []string{"decode"}, changed(made(text("", other, ""), apart), apart))
	v1 := made(text(yes, "", ""), apart)
	require.Empty(t, changed(v1, apart), "together affects only what later versions replace")
	alike, err := MadeAlike(apart.Spec, v1.Spec)
	require.NoError(t, err)
	require.True(t, alike)
	same, err := Same(apart.Spec, v1.Spec)
	require.NoError(t, err)
	require.False(t, same, "together is part of the version")

	v2 := made(text(yes, other, ""), v1)
	require.Equal(t, []string{"prefill", "decode"}, changed(v2, v1))
	require.Empty(t, changed(made(text(yes, other, ""), v2), v2))
	require.Equal(t, []string{"router"}, changed(made(text(yes, other, other), v2), v2))
	require.Equal(t, []string{"prefill", "decode"}, changed(made(text(yes, "", ""), v2), v2), "back again")
	require.Equal(t, []string{"decode"}, changed(made(text("", "", ""), v2), v2), "apart again")
	require.Equal(t, []string{"prefill", "decode"}, changed(made(text(yes, other, ""), apart), apart), "together with the first change")
}

// With together, a role with an image of its own changes with the image of the spec, too, so its instances are replaced.
func TestMadeAlike_NotIfOtherRolesChangeWithTheImage(t *testing.T) {
	alike := func(a, b string) bool {
		left, right := parsed(t, a), parsed(t, b)
		same, err := MadeAlike(left, right)
		require.NoError(t, err)
		back, err := MadeAlike(right, left)
		require.NoError(t, err)
		require.Equal(t, same, back)
		return same
	}
	text := func(image, prefill, decode string) string {
		return fmt.Sprintf(`%s regions: "eu" roles {name: "prefill" %s} roles {name: "decode" %s}`, image, prefill, decode)
	}
	const yes, image, own = " together: true", `image: "serve:1"`, `image: "decode@sha256:01"`
	require.False(t, alike(text(image, "", own), text(image, yes, own+yes)))
	require.True(t, alike(text(image, yes, own+yes), text(image, yes, own+yes)))
	require.True(t, alike(text(image, "", ""), text(image, yes, yes)), "both roles run the spec's image anyway")
	require.True(t, alike(text("", own, own), text("", own+yes, own+yes)), "neither role runs the spec's image")
}

func TestPool_RefusedPoliciesHaveFieldAndFix(t *testing.T) {
	spec := parsed(t, pair+` layout: LAYOUT_POOLED`)
	ordered := parsed(t, pair+` layout: LAYOUT_POOLED update {order: ORDER_SEQUENTIAL}`)
	yields := parsed(t, pair+` layout: LAYOUT_POOLED update {when_full: WHEN_FULL_REPLACE_IN_PLACE}`)
	for _, c := range []struct {
		policy, field string
		spec, allows  *windlassv1.DeploymentSpec
	}{
		{`strategy: STRATEGY_IN_PLACE`, "rollout.strategy", spec, parsed(t, pair)},
		{`strategy: STRATEGY_ROLLING max_surge: "0" max_unavailable: "25%"`, "rollout.maxSurge", spec, parsed(t, pair)},
		{`strategy: STRATEGY_ROLLING max_surge: "0" max_unavailable: "25%"`, "rollout.maxSurge", ordered, parsed(t, pair)},
		{`strategy: STRATEGY_RECREATE`, "rollout.strategy", ordered, spec},
		{`strategy: STRATEGY_RECREATE`, "rollout.strategy", yields, spec},
		{`max_unavailable: "25%"`, "rollout.maxUnavailable", yields, ordered},
		{`max_surge: "0"`, "rollout.maxSurge", yields, parsed(t, pair)},
		{`strategy: STRATEGY_CANARY steps {weight: 10}`, "rollout.strategy", ordered, spec},
		{`strategy: STRATEGY_BLUE_GREEN`, "rollout.strategy", ordered, spec},
	} {
		p := &windlassv1.RolloutPolicy{}
		require.NoError(t, prototext.Unmarshal([]byte(c.policy), p))
		detail := rpc.DetailOf(CheckPolicy(p, c.spec, "rollout"))
		require.Equal(t, c.field, detail.GetField())
		require.NotEmpty(t, detail.GetFix())
		require.NotEqual(t, c.field, rpc.DetailOf(CheckPolicy(p, c.allows, "rollout")).GetField())
	}
	require.NoError(t, CheckPolicy(&windlassv1.RolloutPolicy{MaxUnavailable: "25%"}, ordered, "rollout"))
	require.NoError(t, CheckPolicy(&windlassv1.RolloutPolicy{MaxSurge: "25%"}, yields, "rollout"))
	require.Equal(t, "scaling", rpc.DetailOf(CheckScaling(&windlassv1.ScalingPolicy{Max: 3, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "4"}}}, spec, "scaling")).GetField())
}

func TestPool_InstancesDoNotSeeTheOrder(t *testing.T) {
	plain, coherent := parsed(t, pair+` layout: LAYOUT_POOLED`), parsed(t, pair+` layout: LAYOUT_POOLED update {order: ORDER_COHERENT}`)
	ordered := parsed(t, pair+` layout: LAYOUT_POOLED update {order: ORDER_SEQUENTIAL sequence: "decode"}`)
	same, err := Same(plain, coherent)
	require.NoError(t, err)
	require.True(t, same, "coherent is the default")
	same, err = Same(plain, ordered)
	require.NoError(t, err)
	require.False(t, same, "the order changes how rollouts proceed")
	alike, err := MadeAlike(plain, ordered)
	require.NoError(t, err)
	require.True(t, alike)
	require.NoError(t, Check(ordered, "spec"))
	require.Nil(t, parsed(t, pair+` update {}`).GetUpdate())
	yields := parsed(t, pair+` layout: LAYOUT_POOLED update {order: ORDER_COHERENT when_full: WHEN_FULL_REPLACE_IN_PLACE}`)
	require.NoError(t, Check(yields, "spec"))
	alike, err = MadeAlike(plain, yields)
	require.NoError(t, err)
	require.True(t, alike)
	same, err = Same(yields, parsed(t, pair+` layout: LAYOUT_POOLED update {when_full: WHEN_FULL_REPLACE_IN_PLACE}`))
	require.NoError(t, err)
	require.True(t, same)
	require.Nil(t, parsed(t, pair+` layout: LAYOUT_POOLED update {when_full: WHEN_FULL_WAIT}`).GetUpdate(), "it is the default")
}

func TestPool_NumberOfInstancesIsNotPartOfTheVersion(t *testing.T) {
	a, b := parsed(t, pair+` layout: LAYOUT_POOLED`), parsed(t, pair+` layout: LAYOUT_POOLED`)
	b.Roles[1].Instances = 6
	b.PinnedOverrides = []*windlassv1.PinnedOverride{{Region: "eu", RegionId: "reg", Values: &windlassv1.Override{
		Roles: []*windlassv1.RoleOverride{{Name: "decode", Instances: 3}},
	}}}
	same, err := Same(a, b)
	require.NoError(t, err)
	require.True(t, same)
	require.Zero(t, a.Roles[1].Instances, "0 keeps the pool's instances")
	b.Roles[1].Args = []string{"--x"}
	same, err = Same(a, b)
	require.NoError(t, err)
	require.False(t, same)
	c := parsed(t, pair)
	c.Roles[1].Instances = 6
	same, err = Same(c, parsed(t, pair))
	require.NoError(t, err)
	require.False(t, same, "the number of instances in a group is part of the version")
}

func TestGroupText(t *testing.T) {
	for spec, want := range map[string]string{
		`command: "serve"`:                    "",
		`roles {name: "main" instances: 3}`:   "",
		`roles {name: "shard" hosts: 2}`:      "an instance of 2 hosts",
		`roles {name: "a"} roles {name: "b"}`: "1 a and 1 b",
		`roles {name: "a" instances: 2} roles {name: "b"} roles {name: "c" hosts: 4}`: "2 a, 1 b and 1 c of 4 hosts",
	} {
		require.Equal(t, want, GroupText(parsed(t, spec)), spec)
	}
}
