package appspec

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/pkg/rpc"
)

const ofPair = `command: "serve" regions: "eu" roles {name: "prefill"} roles {name: "decode" entry: true} `

func TestPairing_RefusalHasFieldAndFix(t *testing.T) {
	const one = `command: "serve" regions: "eu" `
	for _, c := range []struct{ name, spec, field, message string }{
		{"no engine", ofPair + `pairing {min_prompt_bytes: 5}`, "spec.pairing.engine", "the engine is missing"},
		{"one role", one + `pairing {engine: ENGINE_NIXL}`, "spec.pairing", "the app has one role"},
		{"no prefill", one + `roles {name: "decode"} roles {name: "b"} pairing {engine: ENGINE_NIXL}`, "spec.pairing.prefill", `the app has no role "prefill"`},
		{"no decode", one + `roles {name: "prefill"} roles {name: "b"} pairing {engine: ENGINE_NIXL}`, "spec.pairing.decode", `the app has no role "decode"`},
		{"an unknown role", ofPair + `pairing {engine: ENGINE_NIXL prefill: "other"}`, "spec.pairing.prefill", `the app has no role "other"`},
		{"one role twice", ofPair + `pairing {engine: ENGINE_NIXL prefill: "decode"}`, "spec.pairing.decode", `role "decode" is both roles`},
		{"prefill is the entry", one + `roles {name: "prefill"} roles {name: "decode"} pairing {engine: ENGINE_NIXL}`, "spec.roles[0].entry", `role "prefill" is the entry, but role "decode" answers requests`},
		{"short prompts with none", ofPair + `pairing {engine: ENGINE_NONE min_prompt_bytes: 5}`, "spec.pairing.minPromptBytes", "with engine none"},
		{"short prompts with sglang", ofPair + `pairing {engine: ENGINE_SGLANG min_prompt_bytes: 5}`, "spec.pairing.minPromptBytes", "with engine sglang no request goes to a decode server alone"},
		{"roles with none", ofPair + `pairing {engine: ENGINE_NONE prefill: "x"}`, "spec.pairing.engine", "engine none pairs no instances"},
		{"sglang without a port", ofPair + `pairing {engine: ENGINE_SGLANG}`, "spec.ports", "needs the port"},
		{"sglang with its port first", ofPair + `ports {name: "bootstrap"} pairing {engine: ENGINE_SGLANG}`, "spec.ports[0]", "must not be the port named bootstrap"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Check(parsed(t, c.spec), "spec")
			require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%v", err)
			require.Contains(t, apierr.Message(err), c.message)
			require.Equal(t, c.field, rpc.DetailOf(err).GetField())
			require.NotEmpty(t, rpc.DetailOf(err).GetFix())
		})
	}
	for _, spec := range []string{
		ofPair + `pairing {engine: ENGINE_NIXL min_prompt_bytes: 100}`, ofPair + `layout: LAYOUT_POOLED pairing {engine: ENGINE_NIXL}`,
		ofPair + `ports {name: "http"} ports {name: "bootstrap"} pairing {engine: ENGINE_SGLANG}`,
		one + `roles {name: "p"} roles {name: "d" entry: true} roles {name: "x"} pairing {engine: ENGINE_NIXL prefill: "p" decode: "d"}`,
	} {
		require.NoError(t, Check(parsed(t, spec), "spec"), spec)
	}
}

func TestPairing_DefaultsLeaveTheSpecAsItWas(t *testing.T) {
	for spec, plain := range map[string]string{
		`pairing {engine: ENGINE_NONE}`:                                                           ``,
		`pairing {engine: ENGINE_NONE key: KEY_VERSION}`:                                          ``,
		`pairing {engine: ENGINE_NIXL key: KEY_VERSION prefill: "prefill" decode: "decode"}`:      `pairing {engine: ENGINE_NIXL}`,
		`pairing {engine: ENGINE_NIXL prefill: "prefill" decode: "decode" min_prompt_bytes: 100}`: `pairing {engine: ENGINE_NIXL min_prompt_bytes: 100}`,
	} {
		require.True(t, proto.Equal(parsed(t, ofPair+spec), parsed(t, ofPair+plain)), spec)
	}
}

func TestPairing_IsPartOfTheVersionAndOfNoInstance(t *testing.T) {
	a, b := parsed(t, ofPair), parsed(t, ofPair+`pairing {engine: ENGINE_NIXL}`)
	same, err := Same(a, b)
	require.NoError(t, err)
	require.False(t, same)
	alike, err := MadeAlike(a, b)
	require.NoError(t, err)
	require.True(t, alike)
}
