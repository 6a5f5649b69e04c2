package pairing

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fields returns the fields of a body.
func fields(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var out map[string]any
	require.NoError(t, json.Unmarshal(body, &out), string(body))
	return out
}

func TestNIXL_LegsAreAsVLLMsProxyMakesThem(t *testing.T) {
	r := Read([]byte(`{"model":"m","prompt":"a <b> é","max_tokens":90,"max_completion_tokens":80,"min_tokens":5,"stream":true,"stream_options":{"include_usage":true},
		"seed":12345678901234567890,"kv_transfer_params":{"remote_host":"evil.test"}}`))
	require.True(t, r.HasGatewayFields())
	prefill := fields(t, r.PrefillNIXL())
	require.Equal(t, map[string]any{
		"model": "m", "prompt": "a <b> é", "max_tokens": 1.0, "max_completion_tokens": 1.0, "stream": false, "seed": 12345678901234567890.0,
		"kv_transfer_params": map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil},
	}, prefill)
	body, err := r.DecodeNIXL([]byte(`{"id":"x","kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[1,2],"remote_port":5600}}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"model":"m","prompt":"a <b> é","max_tokens":90,"max_completion_tokens":80,"min_tokens":5,"stream":true,"stream_options":{"include_usage":true},
		"seed":12345678901234567890,"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[1,2],"remote_port":5600}}`, string(body))
	require.Contains(t, string(body), "12345678901234567890", "numbers keep their text")
	require.Contains(t, string(body), "<b>")
	for _, answer := range []string{`{}`, `{"kv_transfer_params":null}`} {
		body, err := r.DecodeNIXL([]byte(answer))
		require.NoError(t, err)
		require.NotContains(t, fields(t, body), "kv_transfer_params")
	}
	for _, answer := range []string{``, `data: {}`, `[]`} {
		_, err = r.DecodeNIXL([]byte(answer))
		require.ErrorIs(t, err, ErrNoParams, answer)
	}
	require.NotContains(t, fields(t, Read([]byte(`{"prompt":"a"}`)).PrefillNIXL()), "max_completion_tokens")
}

func TestSGLang_LegsMeetInOneRoom(t *testing.T) {
	n := int64(0)
	room := func() int64 { n++; return n }
	for body, want := range map[string]string{
		`{"prompt":"a","stream":true}`:   `"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":1`,
		`{"prompt":["a"],"stream":true}`: `"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":1`,
		`{"text":["a"],"stream":true}`:   `"bootstrap_host":["10.0.0.1"],"bootstrap_port":[8998],"bootstrap_room":[2]`,
		`{"text":["a","b"]}`:             `"bootstrap_host":["10.0.0.1","10.0.0.1"],"bootstrap_port":[8998,8998],"bootstrap_room":[2,3]`,
		`{"input_ids":[[1],[2]]}`:        `"bootstrap_host":["10.0.0.1","10.0.0.1"],"bootstrap_port":[8998,8998],"bootstrap_room":[2,3]`,
		`{"input_ids":[1,2],"n":1}`:      `"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":1`,
	} {
		n = 0
		r := Read([]byte(body))
		require.Empty(t, Policy{Engine: SGLang}.WhyAlone(r), body)
		prefill, decode := r.SGLang("10.0.0.1:80", 8998, room)
		require.Contains(t, string(decode), want, body)
		p, d := fields(t, prefill), fields(t, decode)
		require.Equal(t, false, p["stream"], "the status says whether the prompt was transferred")
		for _, name := range gatewayFields {
			require.Equal(t, d[name], p[name], name)
		}
	}
	_, decode := Read([]byte(`{"prompt":"a"}`)).SGLang("[fd00::1]:80", 0, room)
	require.Equal(t, "[fd00::1]", fields(t, decode)["bootstrap_host"])
	require.Contains(t, string(decode), `"bootstrap_port":null`)
}

func TestPolicy_SaysWhyARequestGoesAlone(t *testing.T) {
	nixl := Policy{Engine: NIXL, MinPromptBytes: 8}
	for body, want := range map[string]Reason{
		`{"prompt":"short"}`:                           Short, // 7 bytes with its quotes
		`{"prompt":"longer"}`:                          "",
		`{"messages":[{"role":"user","content":"a"}]}`: "",
		`{"prompt":["long enough","b"]}`:               Several,
		`{"prompt":[[1,2],[3]]}`:                       Several,
		`{"prompt":["long enough"]}`:                   "",
		`{"prompt":[1,2,3,4,5,6]}`:                     "",
		`{"prompt":"long enough","n":2}`:               Several,
		`{"prompt":"long enough","best_of":3}`:         Several,
		`{"prompt":"long enough","n":1}`:               "",
		`{"model":"m"}`:                                Short,
		`[1]`:                                          NotJSON,
		`null`:                                         NotJSON,
		`{"prompt":`:                                   NotJSON,
		``:                                             NotJSON,
		`{"prompt":[],"messages":[{"content":"abcdefgh"}]}`: "",
	} {
		require.Equal(t, want, nixl.WhyAlone(Read([]byte(body))), body)
	}
	require.Empty(t, Policy{Engine: SGLang}.WhyAlone(Read([]byte(`{"prompt":["a","b"],"n":2}`))))
	require.True(t, Policy{Engine: SGLang}.Refuses(Large))
	require.True(t, Policy{Engine: SGLang}.Refuses(NotJSON))
	require.False(t, nixl.Refuses(Short))
	require.True(t, nixl.Refuses(Large))
	require.Equal(t, NoEngine, Policy{}.WhyAlone(Read([]byte(`{"prompt":"a"}`))))
	require.True(t, Policy{}.Refuses(NoEngine))
	require.True(t, Policy{}.Refuses(NotJSON))
	require.False(t, Policy{}.Refuses(Path))
	require.JSONEq(t, `{"prompt":"a"}`, string(Read([]byte(`{"prompt":"a","bootstrap_host":"x","bootstrap_room":1}`)).Alone()))
	require.True(t, Takes("POST", "/v1/chat/completions"))
	require.True(t, Takes("POST", "/openai/v1/completions"))
	require.False(t, Takes("GET", "/v1/completions"))
	require.False(t, Takes("POST", "/v1/embeddings"))
}

func TestRead_ListOfTokensTakesLittleMemory(t *testing.T) {
	body := []byte(`{"prompt":[1` + strings.Repeat(",1", 1<<20) + `]}`)
	require.Less(t, testing.AllocsPerRun(1, func() { Read(body) }), 1000.0, "no allocation for each token")
	require.Empty(t, Policy{Engine: NIXL}.WhyAlone(Read(body)))
	require.Equal(t, 3, batchOf([]byte(` [ "a" , [1, 2] , "b" ] `)))
	require.Equal(t, -1, batchOf([]byte(`[]`)))
	require.Equal(t, -1, batchOf([]byte(`"[1]"`)))
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"prompt":["a"],"n":2,"stream":true}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r := Read(body)
		if r.Unfit != "" {
			return
		}
		for _, out := range [][]byte{r.Alone(), r.PrefillNIXL()} {
			if !json.Valid(out) {
				t.Fatalf("%q", out)
			}
		}
		r.SGLang("a:1", 2, func() int64 { return 3 })
	})
}
