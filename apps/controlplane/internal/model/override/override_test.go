package override

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// base is the spec of all tables, without overrides.
const base = `
command: ["serve"]
args: ["--model", "llama"]
replicas: 2
resources {cpu_millicores: 500 memory_mib: 4096 gpu {count: 4 product: "H100" pool: "h100"}}
env {key: "MODE" value: "fast"} env {key: "LOG" value: "info"}
secrets {env_name: "TOKEN" secret: "token"} secrets {secret: "registry" image_pull: true}
regions: ["us", "eu", "ap"]
`

var regions = []model.Region{
	{ID: "reg_us", Name: "us", Labels: map[string]string{"tier": "large", "gpu": "h100"}},
	{ID: "reg_eu", Name: "eu", Labels: map[string]string{"tier": "small", "gpu": "l4"}},
	{ID: "reg_ap", Name: "ap", Labels: map[string]string{"tier": "small"}},
}

func parse(t *testing.T, text string, into proto.Message) {
	t.Helper()
	require.NoError(t, prototext.Unmarshal([]byte(text), into))
}

func specOf(t *testing.T, overrides string) *windlassv1.DeploymentSpec {
	t.Helper()
	s := &windlassv1.DeploymentSpec{}
	parse(t, base+overrides, s)
	return s
}

func pinnedSpec(t *testing.T, overrides string) *windlassv1.DeploymentSpec {
	t.Helper()
	s := specOf(t, overrides)
	var err error
	s.PinnedOverrides, err = Pin(s, regions)
	require.NoError(t, err)
	return s
}

func TestOverride_AppliesToItsRegion(t *testing.T) {
	for _, c := range []struct{ name, overrides, region, want string }{
		{"the override of another region", `overrides {regions: ["eu"] replicas: 5}`, "us", ``},
		{"replicas", `overrides {regions: ["eu"] replicas: 0}`, "eu", `replicas: 0`},
		{
			"amounts one by one", `overrides {regions: ["eu"] resources {memory_mib: 8192}}`, "eu",
			`resources {cpu_millicores: 500 memory_mib: 8192 gpu {count: 4 product: "H100" pool: "h100"}}`,
		},
		{
			"a GPU as a whole", `overrides {regions: ["eu"] resources {gpu {count: 8 pool: "l4"}}}`, "eu",
			`resources {cpu_millicores: 500 memory_mib: 4096 gpu {count: 8 pool: "l4"}}`,
		},
		{"no GPU", `overrides {regions: ["eu"] resources {gpu {count: 0}}}`, "eu", `resources {cpu_millicores: 500 memory_mib: 4096}`},
		{"args replace all args", `overrides {regions: ["eu"] args: ["--model", "small"]}`, "eu", `args: ["--model", "small"]`},
		{"args after the spec's", `overrides {regions: ["eu"] extra_args: ["--tp", "8"]}`, "eu", `args: ["--model", "llama", "--tp", "8"]`},
		{"variables by name", `overrides {regions: ["eu"] env {key: "MODE" value: "slow"} env {key: "MORE" value: "x"}}`, "eu", `env {key: "MODE" value: "slow"} env {key: "LOG" value: "info"} env {key: "MORE" value: "x"}`},
		{
			"a value replaces a secret", `overrides {regions: ["eu"] env {key: "TOKEN" value: "none"}}`, "eu",
			`env {key: "MODE" value: "fast"} env {key: "LOG" value: "info"} env {key: "TOKEN" value: "none"} secrets {secret: "registry" image_pull: true}`,
		},
		{
			"a secret replaces a value", `overrides {regions: ["eu"] secrets {env_name: "MODE" secret: "mode"}}`, "eu",
			`env {key: "LOG" value: "info"} secrets {env_name: "TOKEN" secret: "token"} secrets {secret: "registry" image_pull: true} secrets {env_name: "MODE" secret: "mode"}`,
		},
		{
			"a secret replaces a secret", `overrides {regions: ["eu"] secrets {env_name: "TOKEN" secret: "eu-token"}}`, "eu",
			`secrets {secret: "registry" image_pull: true} secrets {env_name: "TOKEN" secret: "eu-token"}`,
		},
		{"by labels", `overrides {labels {key: "tier" value: "small"} replicas: 1}`, "ap", `replicas: 1`},
		{"a region without one of the labels", `overrides {labels {key: "tier" value: "small"} labels {key: "gpu" value: "l4"} replicas: 1}`, "ap", ``},
		{"the name wins over labels, by field", `overrides {labels {key: "tier" value: "small"} replicas: 1 env {key: "MODE" value: "slow"} env {key: "MORE" value: "x"}}
overrides {regions: ["eu"] env {key: "MODE" value: "exact"}}`, "eu", `replicas: 1 env {key: "MODE" value: "exact"} env {key: "LOG" value: "info"} env {key: "MORE" value: "x"}`},
		{"extra args of the name win over args of labels", `overrides {labels {key: "tier" value: "small"} args: ["a"]}
overrides {regions: ["eu"] extra_args: ["b"]}`, "eu", `args: ["--model", "llama", "b"]`},
		{"two selectors, of different fields", `overrides {labels {key: "tier" value: "small"} replicas: 1}
overrides {labels {key: "gpu" value: "l4"} extra_args: ["b"]}`, "eu", `replicas: 1 args: ["--model", "llama", "b"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := pinnedSpec(t, c.overrides)
			before := proto.CloneOf(s)
			want, changed := &windlassv1.DeploymentSpec{}, &windlassv1.DeploymentSpec{}
			parse(t, base, want)
			if c.want != "" {
				parse(t, c.want, changed)
			}
			changed.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
				want.ProtoReflect().Set(f, v)
				return true
			})
			got := In(s, "reg_"+c.region)
			require.Equal(t, protojson.Format(want), protojson.Format(got))
			require.True(t, proto.Equal(before, s), "the version does not change")
		})
	}
}

func TestOverride_OfARolesResourcesAndArgs(t *testing.T) {
	s := &windlassv1.DeploymentSpec{}
	parse(t, `regions: ["eu"] roles {name: "main" args: ["--own"] resources {gpu {count: 2}}} overrides {regions: ["eu"] extra_args: ["--tp"] resources {gpu {count: 8}}}`, s)
	var err error
	s.PinnedOverrides, err = Pin(s, regions[1:2])
	require.NoError(t, err)
	r := In(s, "reg_eu").GetRoles()[0]
	require.Equal(t, []string{"--own", "--tp"}, r.GetArgs())
	require.Equal(t, int32(8), r.GetResources().GetGpu().GetCount())
}

func TestOverride_OfOneOfSeveralRoles(t *testing.T) {
	s := &windlassv1.DeploymentSpec{}
	parse(t, `regions: ["eu"] resources {memory_mib: 7} roles {name: "prefill" args: ["--p"]} roles {name: "decode" args: ["--own"]}
overrides {regions: ["eu"] roles {name: "decode" args: ["--x"] resources {memory_mib: 9 gpu {count: 8}}}}`, s)
	var err error
	s.PinnedOverrides, err = Pin(s, regions[1:2])
	require.NoError(t, err)
	require.Len(t, s.GetPinnedOverrides()[0].GetValues().GetRoles(), 1)
	in := In(s, "reg_eu")
	require.Equal(t, []string{"--p"}, in.GetRoles()[0].GetArgs())
	require.Nil(t, in.GetRoles()[0].GetResources())
	require.Equal(t, []string{"--x"}, in.GetRoles()[1].GetArgs())
	require.EqualValues(t, 9, in.GetRoles()[1].GetResources().GetMemoryMib())
	require.EqualValues(t, 8, in.GetRoles()[1].GetResources().GetGpu().GetCount())
	require.Equal(t, []string{"--own"}, s.GetRoles()[1].GetArgs(), "the version does not change")
}

func TestPin_RefusalHasTheFix(t *testing.T) {
	for _, c := range []struct {
		name, overrides string
		reason          windlassv1.ErrorReason
		field, message  string
	}{
		{"labels that no region has", `overrides {labels {key: "tier" value: "huge"} replicas: 1}`, nothing, "overrides[0].labels", "none of the app's regions"},
		{"the value of the spec", `overrides {regions: ["eu", "us"] replicas: 2}`, nothing, "overrides[0]", "the same in us, eu"},
		{"the value of the spec, of variables", `overrides {regions: ["eu"] env {key: "MODE" value: "fast"}}`, nothing, "overrides[0]", "the same in eu"},
		{"a value that the name overrides", `overrides {labels {key: "gpu" value: "l4"} replicas: 4}
overrides {regions: ["eu"] replicas: 5}`, nothing, "overrides[0]", "the same in eu"},
		{"the value of another override", `overrides {labels {key: "tier" value: "small"} replicas: 4}
overrides {labels {key: "gpu" value: "l4"} replicas: 4}`, nothing, "overrides[1]", "the same in eu"},
		{"two numbers", `overrides {labels {key: "tier" value: "small"} replicas: 4}
overrides {labels {key: "gpu" value: "l4"} replicas: 5}`, conflict, "overrides[1].replicas", "region eu has the labels of overrides[0] and of overrides[1]"},
		{"two GPUs", `overrides {labels {key: "tier" value: "small"} resources {gpu {count: 1}}}
overrides {labels {key: "gpu" value: "l4"} resources {gpu {count: 1 pool: "l4"}}}`, conflict, "overrides[1].resources.gpu", "resources.gpu"},
		{"args and extra args", `overrides {labels {key: "tier" value: "small"} args: ["a"]}
overrides {labels {key: "gpu" value: "l4"} extra_args: ["b"]}`, conflict, "overrides[1].extra_args", "its args"},
		{"a value and a secret", `overrides {labels {key: "tier" value: "small"} env {key: "MODE" value: "a"}}
overrides {labels {key: "gpu" value: "l4"} secrets {env_name: "MODE" secret: "mode"}}`, conflict, "overrides[1].secrets[0]", "its variable MODE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Pin(specOf(t, c.overrides), regions)
			p, ok := errors.AsType[*Problem](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, c.reason, p.Reason)
			require.Equal(t, c.field, p.Field)
			require.Contains(t, p.Message, c.message)
			require.NotEmpty(t, p.Fix)
		})
	}
}

func TestOverride_NameDecidesBetweenSelectors(t *testing.T) {
	s := pinnedSpec(t, `overrides {labels {key: "tier" value: "small"} replicas: 4}
overrides {labels {key: "gpu" value: "l4"} replicas: 5 env {key: "A" value: "b"}}
overrides {regions: ["eu"] replicas: 6}`)
	n, ok := Replicas(s, "reg_eu")
	require.True(t, ok)
	require.Equal(t, int32(6), n)
}

// Pinned overrides must not depend on present labels, nor on whether overrides name regions or labels.
func TestOverride_PinnedIgnoresLabels(t *testing.T) {
	s := pinnedSpec(t, `overrides {labels {key: "tier" value: "small"} extra_args: ["b"]}`)
	t.Run("by name", func(t *testing.T) {
		named := pinnedSpec(t, `overrides {regions: ["ap", "eu"] extra_args: ["b"]}`)
		require.Len(t, Versioned(named), len(Versioned(s)))
		for i, p := range Versioned(s) {
			require.True(t, proto.Equal(p, Versioned(named)[i]))
		}
	})
	require.Equal(t, []string{"--model", "llama"}, In(s, "reg_new").GetArgs())
	require.Empty(t, Stale(s, map[string]string{"eu": "reg_eu"}))
	require.Equal(t, "eu", Stale(s, map[string]string{"eu": "reg_new"}))
	Repin(s, map[string]string{"eu": "reg_new"})
	require.Equal(t, []string{"--model", "llama", "b"}, In(s, "reg_new").GetArgs())
	require.Len(t, s.GetPinnedOverrides(), 1, "region ap no longer exists")
}

func TestOverride_ReplicasAreNotPartOfTheVersion(t *testing.T) {
	s := pinnedSpec(t, `overrides {regions: ["eu"] replicas: 5 env {key: "A" value: "b"}}
overrides {regions: ["us"] replicas: 7}`)
	require.Len(t, Versioned(s), 1)
	require.Nil(t, Versioned(s)[0].GetValues().Replicas)

	SetReplicas(s, "eu", "reg_eu", 9)
	SetReplicas(s, "us", "reg_us", 2)
	SetReplicas(s, "ap", "reg_ap", 3)
	for region, want := range map[string]int32{"reg_eu": 9, "reg_us": 2, "reg_ap": 3, "reg_other": 2} {
		n, _ := Replicas(s, region)
		require.Equal(t, want, n, region)
	}
	require.Empty(t, ID(s, "us"), "us has the replicas of the spec")
	require.Equal(t, "b", In(s, "reg_eu").GetEnv()["A"])
}

func TestOverride_NoneReturnsTheSpec(t *testing.T) {
	s := &windlassv1.DeploymentSpec{Regions: []string{"us"}}
	require.Same(t, s, In(s, "reg_us"))
	require.Nil(t, In(nil, "reg_us"))
	require.Nil(t, Versioned(s))
	require.Equal(t, []*windlassv1.DeploymentSpec{s}, Any(s))
}
