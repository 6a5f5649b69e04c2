package modelserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type clientKV struct {
	Choices []struct{ Text string }
	KV      *struct {
		DoRemotePrefill bool   `json:"do_remote_prefill"`
		EngineID        string `json:"remote_engine_id"`
		BlockIDs        []int  `json:"remote_block_ids"`
		Host            string `json:"remote_host"`
		Port            int    `json:"remote_port"`
	} `json:"kv_transfer_params"`
}

// pair starts a prefill and a decode server that transfer KV caches over the loopback address.
func pair(t *testing.T, prefill, decode variables) (p, d *endpoint) {
	t.Helper()
	with := func(v variables, role string) *endpoint {
		env := variables{"VLLM_NIXL_SIDE_CHANNEL_PORT": "0", "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "MODELSERVER_TOKEN_RATE": "0"}
		maps.Copy(env, v)
		return startEngineReady(t, `vllm serve m --kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"`+role+`","engine_id":"`+role+`"}`, env)
	}
	return with(prefill, "kv_producer"), with(decode, "kv_consumer")
}

const longPrompt = "0 1 2 3 4 5 6 7 8 9 a b c d e f g h i j"

// prefilled sends the prefill request and returns the parameters for the decode request.
func prefilled(t *testing.T, p *endpoint, prompt string) string {
	t.Helper()
	r := p.do("POST", "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%q,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}}`, prompt))
	require.Equal(t, http.StatusOK, r.status, string(r.body))
	answer := parse[clientKV](t, r.body)
	require.NotNil(t, answer.KV)
	require.True(t, answer.KV.DoRemotePrefill)
	require.Equal(t, "kv_producer", answer.KV.EngineID)
	require.NotEmpty(t, answer.KV.BlockIDs)
	require.NotZero(t, answer.KV.Port)
	all := parse[map[string]json.RawMessage](t, r.body)
	return string(all["kv_transfer_params"])
}

func decodeLeg(d *endpoint, prompt, params string) reply {
	d.t.Helper()
	return d.do("POST", "/v1/completions", fmt.Sprintf(`{"model":"m","prompt":%q,"kv_transfer_params":%s}`, prompt, params))
}

func TestKVTransfer(t *testing.T) {
	refused := func(t *testing.T, r reply, why string) {
		t.Helper()
		require.Equal(t, http.StatusInternalServerError, r.status)
		require.Contains(t, string(r.body), why)
	}
	t.Run("decode continues from the blocks of prefill, only once", func(t *testing.T) {
		p, d := pair(t, variables{"MODELSERVER_VERSION_LABEL": "v1"}, variables{"MODELSERVER_VERSION_LABEL": "v1"})
		params := prefilled(t, p, longPrompt)
		r := decodeLeg(d, longPrompt, params)
		require.Equal(t, http.StatusOK, r.status, string(r.body))
		answer := parse[clientKV](t, r.body)
		require.Equal(t, longPrompt, answer.Choices[0].Text)
		require.Nil(t, answer.KV, "a decode answer offers no blocks")
		require.Equal(t, "v1", r.header.Get(headerPrefillVersion))
		refused(t, decodeLeg(d, longPrompt, params), "does not exist")
		require.Empty(t, p.server.kv.blocks)
	})
	t.Run("a request without parameters is like any other", func(t *testing.T) {
		p, _ := pair(t, nil, nil)
		require.Nil(t, parse[clientKV](t, p.do("POST", "/v1/completions", `{"model":"m","prompt":"a"}`).body).KV)
		require.Empty(t, p.server.kv.blocks)
	})
	t.Run("different versions fail the request, and the blocks stay", func(t *testing.T) {
		p, d := pair(t, variables{"MODELSERVER_VERSION_LABEL": "v1"}, variables{"MODELSERVER_VERSION_LABEL": "v2"})
		params := prefilled(t, p, longPrompt)
		r := decodeLeg(d, longPrompt, params)
		require.Equal(t, http.StatusConflict, r.status)
		require.Contains(t, string(r.body), "the KV caches have different layouts")
		require.Contains(t, string(r.body), "kv_incompatible")
		require.Len(t, p.server.kv.blocks, 2)
	})
	t.Run("a lost transfer fails the request", func(t *testing.T) {
		p, d := pair(t, variables{"MODELSERVER_FAULT_LOSE_TRANSFERS": "true"}, nil)
		refused(t, decodeLeg(d, longPrompt, prefilled(t, p, longPrompt)), "KV load failure")
	})
	t.Run("blocks of another prompt are refused", func(t *testing.T) {
		p, d := pair(t, nil, nil)
		refused(t, decodeLeg(d, "something else", prefilled(t, p, longPrompt)), "another prompt")
	})
	t.Run("a prefill server that has ended fails the request", func(t *testing.T) {
		p, d := pair(t, nil, nil)
		params := prefilled(t, p, longPrompt)
		p.stop()
		require.NoError(t, p.exit())
		refused(t, decodeLeg(d, longPrompt, params), "KV load failure")
	})
	t.Run("incomplete parameters are the caller's fault", func(t *testing.T) {
		_, d := pair(t, nil, nil)
		require.Equal(t, http.StatusBadRequest, decodeLeg(d, "a", `{"do_remote_prefill":true}`).status)
	})
	t.Run("blocks that were not fetched are dropped", func(t *testing.T) {
		k := newKVStore(&Config{Engine: EngineConfig{KVTransfer: KVTransfer{Enabled: true, Timeout: time.Minute}}}, "e", func() bool { return false })
		start := time.Unix(0, 0)
		ids, err := k.holdTokens([]string{"a"}, start)
		require.NoError(t, err)
		ask := kvFetch{EngineID: "e", Compatibility: k.compatibility, BlockIDs: ids}
		require.Equal(t, "block 1 does not exist: it was fetched or dropped", k.takeBlocks(ask, start.Add(time.Minute+1)).Error)
		_, err = k.holdTokens([]string{"b"}, start.Add(time.Minute+1))
		require.NoError(t, err)
		require.Len(t, k.blocks, 1)
		ask.EngineID = "other"
		require.Contains(t, k.takeBlocks(ask, start).Error, "this is engine e, not other")
	})
	t.Run("a side channel's port that is not a number is refused", func(t *testing.T) {
		_, _, err := ParseArgs([]string{"vllm", "serve", "m", "--kv-transfer-config", `{"kv_connector":"NixlConnector","kv_role":"kv_both"}`},
			variables{"VLLM_NIXL_SIDE_CHANNEL_PORT": "x"}.lookup)
		require.ErrorContains(t, err, "VLLM_NIXL_SIDE_CHANNEL_PORT")
	})
}
