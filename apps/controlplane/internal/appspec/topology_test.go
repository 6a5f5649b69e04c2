package appspec

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/pkg/rpc"
)

func TestTopology_RefusalHasFieldAndFix(t *testing.T) {
	const one, wide = `command: "serve" regions: "eu" `, `command: "serve" regions: "eu" roles {name: "shard" hosts: 2} `
	const two = `command: "serve" regions: "eu" roles {name: "prefill"} roles {name: "decode"} `
	for _, c := range []struct{ name, spec, field, message string }{
		{"no word", wide + `topology {mode: MODE_REQUIRED}`, "spec.topology.pack", "does not say in which part"},
		{"one pod", one + `topology {pack: "rack"}`, "spec.topology", "the app has no gangs"},
		{"roles of one host", two + `topology {pack: "rack"}`, "spec.topology", "the app has no gangs"},
		{"pods that start one by one", wide + `gang {of: OF_NONE} topology {pack: "rack"}`, "spec.topology", "the app has no gangs"},
		{"units of groups", two + `gang {of: OF_GROUP} topology {pack: "rack" of: OF_UNIT}`, "spec.topology.of", "all pods of a replica"},
		{"groups of units", wide + `topology {pack: "rack" of: OF_GROUP}`, "spec.topology.of", "the pods of one instance"},
		{"pods of every zone", wide + `topology {pack: "rack"} kubernetes {zone_spread: ZONE_SPREAD_REQUIRED}`, "spec.topology", "kubernetes.zoneSpread"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Check(parsed(t, c.spec), "spec")
			require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
			require.Contains(t, apierr.Message(err), c.message)
			require.Equal(t, c.field, rpc.DetailOf(err).GetField())
			require.NotEmpty(t, rpc.DetailOf(err).GetFix())
		})
	}
	for _, spec := range []string{
		wide + `topology {pack: "rack" of: OF_UNIT mode: MODE_REQUIRED}`, two + `gang {of: OF_GROUP} topology {pack: "zone" of: OF_GROUP}`,
		wide + `topology {pack: "rack"} kubernetes {zone_spread: ZONE_SPREAD_PREFERRED}`,
	} {
		require.NoError(t, Check(parsed(t, spec), "spec"), spec)
	}
}

func TestTopology_DefaultsLeaveTheSpecAsItWas(t *testing.T) {
	const wide, two = `command: "x" roles {name: "a" hosts: 2} `, `command: "x" roles {name: "a"} roles {name: "b"} gang {of: OF_GROUP} `
	for spec, plain := range map[string]string{
		wide + `topology {}`: wide,
		wide + `topology {of: OF_UNIT mode: MODE_PREFERRED}`:              wide,
		wide + `topology {pack: "rack" of: OF_UNIT mode: MODE_PREFERRED}`: wide + `topology {pack: "rack"}`,
		two + `topology {pack: "rack" of: OF_GROUP}`:                      two + `topology {pack: "rack"}`,
	} {
		require.True(t, proto.Equal(parsed(t, spec), parsed(t, plain)), spec)
	}
}

func TestTopologyText(t *testing.T) {
	const wide = `command: "x" roles {name: "a" hosts: 2} `
	for spec, want := range map[string]string{
		wide:                             "",
		wide + `topology {pack: "rack"}`: "an instance is in one rack, if one has room",
		wide + `gang {of: OF_GROUP} topology {pack: "zone" mode: MODE_REQUIRED}`: "a replica is in one zone",
	} {
		require.Equal(t, want, TopologyText(parsed(t, spec)), spec)
	}
}

func TestTopology_IsPartOfTheVersionAndOfNoInstance(t *testing.T) {
	const wide = `command: "x" roles {name: "a" hosts: 2} `
	a, b := parsed(t, wide), parsed(t, wide+`topology {pack: "rack"}`)
	same, err := Same(a, b)
	require.NoError(t, err)
	require.False(t, same)
	alike, err := MadeAlike(a, b)
	require.NoError(t, err)
	require.True(t, alike)
}
