package appspec

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestGang_RefusalHasFieldAndFix(t *testing.T) {
	const one, wide = `command: "serve" regions: "eu" `, `command: "serve" regions: "eu" roles {name: "shard" hosts: 2} `
	const two = `command: "serve" regions: "eu" roles {name: "prefill"} roles {name: "decode"} `
	for _, c := range []struct{ name, spec, field, message string }{
		{"units of one host", two + `gang {of: OF_UNIT}`, "spec.gang.of", "no instance has several hosts"},
		{"groups of one pod", one + `gang {of: OF_GROUP}`, "spec.gang.of", "a replica is one instance of one host"},
		{"groups of one role", one + `roles {name: "a"} gang {of: OF_GROUP timeout {seconds: 60}}`, "spec.gang.of", "a replica is one instance of one host"},
		{"a pool", two + `layout: LAYOUT_POOLED gang {of: OF_GROUP}`, "spec.gang.of", "the instances of a pool"},
		{"groups with an order", two + `roles {name: "router" starts_after: "decode"} gang {of: OF_GROUP}`, "spec.gang.of", "starts after another one"},
		{"a timeout of one pod", one + `gang {timeout {seconds: 60}}`, "spec.gang.timeout", "the app has no gangs"},
		{"a timeout of roles of one host", two + `gang {timeout {seconds: 600}}`, "spec.gang.timeout", "the app has no gangs"},
		{"a timeout without gangs", wide + `gang {of: OF_NONE timeout {seconds: 60}}`, "spec.gang.timeout", "the app has no gangs"},
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
		wide + `gang {of: OF_UNIT timeout {seconds: 60}}`, wide + `gang {of: OF_NONE}`, wide + `gang {of: OF_GROUP}`, two + `gang {of: OF_GROUP timeout {seconds: 60}}`, two + `gang {of: OF_NONE}`,
	} {
		require.NoError(t, Check(parsed(t, spec), "spec"), spec)
	}
}

func TestSlots_PolicyKeepsThem(t *testing.T) {
	const one = `command: "x" regions: "eu" roles {name: "a" slots: SLOTS_STABLE}`
	const ofPool = `command: "x" regions: "eu" layout: LAYOUT_POOLED update {order: ORDER_SEQUENTIAL} roles {name: "a"} roles {name: "b" slots: SLOTS_STABLE}`
	for _, c := range []struct{ name, spec, policy, field string }{
		{"the default strategy", one, "", "rollout.strategy"},
		{"canary, which adds instances", one, `strategy: STRATEGY_CANARY`, "rollout.strategy"},
		{"recreate", one, `strategy: STRATEGY_RECREATE`, "rollout.strategy"},
		{"the default strategy of a pool", ofPool, "", "rollout.maxUnavailable"},
		{"a pool that stops no instance first", ofPool, `max_unavailable: "0%"`, "rollout.maxUnavailable"},
		{"a pool with a surge", ofPool, `max_unavailable: "10%" max_surge: "10%"`, "rollout.maxSurge"},
		{"another strategy of a pool", ofPool, `strategy: STRATEGY_RECREATE`, "rollout.strategy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p *windlassv1.RolloutPolicy
			if c.policy != "" {
				p = &windlassv1.RolloutPolicy{}
				require.NoError(t, prototext.Unmarshal([]byte(c.policy), p))
			}
			err := CheckPolicy(p, parsed(t, c.spec), "rollout")
			require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
			require.Equal(t, c.field, rpc.DetailOf(err).GetField())
			require.NotEmpty(t, rpc.DetailOf(err).GetFix())
		})
	}
	require.NoError(t, CheckPolicy(&windlassv1.RolloutPolicy{Strategy: windlassv1.RolloutPolicy_STRATEGY_IN_PLACE}, parsed(t, one), "rollout"))
	require.NoError(t, CheckPolicy(&windlassv1.RolloutPolicy{MaxUnavailable: "1%"}, parsed(t, ofPool), "rollout"))
}

func TestGang_DefaultsLeaveTheSpecAsItWas(t *testing.T) {
	const wide, one = `command: "x" roles {name: "a" hosts: 2} `, `command: "x" `
	for spec, plain := range map[string]string{
		wide + `gang {}`: wide,
		wide + `gang {of: OF_UNIT timeout {seconds: 600}}`:  wide,
		one + `gang {of: OF_NONE}`:                          one,
		wide + `gang {of: OF_UNIT timeout {seconds: 60}}`:   wide + `gang {timeout {seconds: 60}}`,
		wide + `gang {of: OF_GROUP timeout {seconds: 600}}`: wide + `gang {of: OF_GROUP}`,
	} {
		require.True(t, proto.Equal(parsed(t, spec), parsed(t, plain)), spec)
	}
}

func TestGang_IsPartOfTheVersionAndOfNoInstance(t *testing.T) {
	const wide = `command: "x" roles {name: "a" hosts: 2} `
	a, b := parsed(t, wide), parsed(t, wide+`gang {of: OF_NONE}`)
	same, err := Same(a, b)
	require.NoError(t, err)
	require.False(t, same)
	alike, err := MadeAlike(a, b)
	require.NoError(t, err)
	require.True(t, alike)
}
