package modelserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// never is a token rate that is so low that no test sees a second token.
const never = 0.001

const helloChat = `{"model":"echo","messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hello brave new world"}]%s}`

func TestChat_EchoesTheLastUserMessage(t *testing.T) {
	e := startReady(t, Config{VersionLabel: "v7"})
	r := e.do("POST", "/v1/chat/completions", fmt.Sprintf(helloChat, ""))
	require.Equal(t, http.StatusOK, r.status, string(r.body))
	require.Equal(t, "v7", r.header.Get("X-Model-Version"))
	c := parse[clientCompletion](t, r.body)
	require.Equal(t, "chat.completion", c.Object)
	require.Equal(t, "echo", c.Model)
	require.Equal(t, "v7", c.SystemFingerprint)
	require.True(t, strings.HasPrefix(c.ID, "chatcmpl-"))
	require.Len(t, c.Choices, 1)
	require.Equal(t, "assistant", c.Choices[0].Message.Role)
	require.Equal(t, "hello brave new world", c.Choices[0].Message.Content)
	require.Equal(t, "stop", *c.Choices[0].FinishReason)
	require.Equal(t, 6, c.Usage.PromptTokens)
	require.Equal(t, 4, c.Usage.CompletionTokens)
	require.Equal(t, 10, c.Usage.TotalTokens)
}

func TestCompletion_HonoursLimitsAndStop(t *testing.T) {
	e := startReady(t, Config{})
	for name, tc := range map[string]struct {
		body, text, finish string
		tokens             int
	}{
		"whole prompt":          {`"prompt":"a b c"`, "a b c", "stop", 3},
		"prompt in a list":      {`"prompt":["a b c"]`, "a b c", "stop", 3},
		"max_tokens":            {`"prompt":"a b c","max_tokens":2`, "a b", "length", 2},
		"max_tokens to spare":   {`"prompt":"a b c","max_tokens":9`, "a b c", "stop", 3},
		"ignore_eos":            {`"prompt":"a b c","max_tokens":5,"ignore_eos":true`, "a b c a b", "length", 5},
		"stop word":             {`"prompt":"a b c d","stop":" c"`, "a b", "stop", 2},
		"stop within a token":   {`"prompt":"alpha beta gamma","stop":["mm","ta"]`, "alpha be", "stop", 2},
		"stop at the beginning": {`"prompt":"a b","stop":"a"`, "", "stop", 0},
		"stop across tokens":    {`"prompt":"one two three","stop":"o th"`, "one tw", "stop", 2},
		"stop that never comes": {`"prompt":"a b","stop":"z"`, "a b", "stop", 2},
		"null stop":             {`"prompt":"a b","stop":null`, "a b", "stop", 2},
		"empty prompt":          {`"prompt":""`, "", "stop", 0},
		"unknown fields":        {`"prompt":"a","temperature":0.5,"user":"me"`, "a", "stop", 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := e.do("POST", "/v1/completions", `{"model":"echo",`+tc.body+`}`)
			require.Equal(t, http.StatusOK, r.status, string(r.body))
			c := parse[clientCompletion](t, r.body)
			require.Equal(t, "text_completion", c.Object)
			require.Equal(t, tc.text, c.Choices[0].Text)
			require.Equal(t, tc.finish, *c.Choices[0].FinishReason)
			require.Equal(t, tc.tokens, c.Usage.CompletionTokens)
		})
	}
}

func TestChat_ContentMayComeInParts(t *testing.T) {
	e := startReady(t, Config{})
	r := e.do("POST", "/v1/chat/completions", `{"model":"echo","messages":[{"role":"user","content":[{"type":"text","text":"two "},{"type":"text","text":"parts"}]}]}`)
	require.Equal(t, "two parts", parse[clientCompletion](t, r.body).Choices[0].Message.Content)
}

func TestStream_IsWholeForAClient(t *testing.T) {
	e := startReady(t, Config{VersionLabel: "v2"})
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		for _, withUsage := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s usage %t", path, withUsage), func(t *testing.T) {
				extra := fmt.Sprintf(`,"prompt":"hello brave new world","stream":true,"stream_options":{"include_usage":%t}`, withUsage)
				in := e.stream(t.Context(), path, fmt.Sprintf(helloChat, extra))
				var text, finish, id string
				usage, done, chunks := false, false, 0
				for data, ok := in.next(); ok; data, ok = in.next() {
					require.False(t, done, "nothing follows [DONE]")
					if done = data == "[DONE]"; done {
						continue
					}
					c := parse[clientCompletion](t, []byte(data))
					require.Equal(t, "v2", c.SystemFingerprint)
					require.True(t, id == "" || id == c.ID, "all chunks have one ID")
					id = c.ID
					if c.Usage != nil {
						usage = true
						require.Empty(t, c.Choices)
						require.Equal(t, 4, c.Usage.CompletionTokens)
						continue
					}
					require.Empty(t, finish, "no token follows the finish reason")
					text += c.Choices[0].Text
					if content := c.Choices[0].Delta.Content; content != nil {
						text += *content
					}
					if c.Choices[0].FinishReason != nil {
						finish = *c.Choices[0].FinishReason
					}
					chunks++
				}
				require.True(t, done, "the stream ends with [DONE]")
				require.Equal(t, "hello brave new world", text)
				require.Equal(t, "stop", finish)
				require.Equal(t, withUsage, usage)
				require.GreaterOrEqual(t, chunks, 5, "a chunk for every token and one for the end")
			})
		}
	}
}

func TestStream_FirstTokenPrecedesTheSecond(t *testing.T) {
	e := startReady(t, Config{TokenRate: never, KVCacheTokens: 10})
	ctx, disconnect := context.WithCancel(t.Context())
	in := e.stream(ctx, "/v1/completions", `{"model":"echo","prompt":"first second","stream":true}`)
	data, ok := in.next()
	require.True(t, ok)
	require.Equal(t, "first", parse[clientCompletion](t, []byte(data)).Choices[0].Text)
	require.EqualValues(t, 1, e.metric("vllm:generation_tokens_total"))
	require.InDelta(t, 0.3, e.metric("vllm:kv_cache_usage_perc"), 1e-9, "two prompt tokens and one generated token, in a cache of ten")

	disconnect()
	e.awaitLoad(0, 0)
	require.EqualValues(t, 1, e.metric("vllm:request_success_total", "finished_reason", "abort"))
	require.EqualValues(t, 1, e.metric("vllm:generation_tokens_total"), "a disconnect ends generation")
	require.Zero(t, e.metric("vllm:kv_cache_usage_perc"))
}

func TestErrors_HaveOpenAIsForm(t *testing.T) {
	e := startReady(t, Config{MaxBodyBytes: 2000, MaxModelLen: 20})
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
		code, param        string
	}{
		"malformed JSON":     {"POST", "/v1/completions", `{"model":`, 400, "invalid_json", ""},
		"empty body":         {"POST", "/v1/completions", ``, 400, "invalid_json", ""},
		"wrong type":         {"POST", "/v1/completions", `{"model":"echo","prompt":"a","max_tokens":"5"}`, 400, "invalid_value", "max_tokens"},
		"no model":           {"POST", "/v1/completions", `{"prompt":"a"}`, 400, "invalid_value", "model"},
		"other model":        {"POST", "/v1/completions", `{"model":"gpt","prompt":"a"}`, 404, "model_not_found", "model"},
		"other model, get":   {"GET", "/v1/models/gpt", ``, 404, "model_not_found", "model"},
		"no prompt":          {"POST", "/v1/completions", `{"model":"echo"}`, 400, "invalid_value", "prompt"},
		"token prompt":       {"POST", "/v1/completions", `{"model":"echo","prompt":[1,2]}`, 400, "invalid_value", "prompt"},
		"two prompts":        {"POST", "/v1/completions", `{"model":"echo","prompt":["a","b"]}`, 400, "invalid_value", "prompt"},
		"no messages":        {"POST", "/v1/chat/completions", `{"model":"echo","messages":[]}`, 400, "invalid_value", "messages"},
		"unknown role":       {"POST", "/v1/chat/completions", `{"model":"echo","messages":[{"role":"king","content":"a"}]}`, 400, "invalid_value", "messages"},
		"image part":         {"POST", "/v1/chat/completions", `{"model":"echo","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "invalid_value", "messages"},
		"n of 2":             {"POST", "/v1/completions", `{"model":"echo","prompt":"a","n":2}`, 400, "invalid_value", "n"},
		"max_tokens 0":       {"POST", "/v1/completions", `{"model":"echo","prompt":"a","max_tokens":0}`, 400, "invalid_value", "max_tokens"},
		"beyond the context": {"POST", "/v1/completions", `{"model":"echo","prompt":"a","max_tokens":20}`, 400, "context_length_exceeded", ""},
		"prompt too long":    {"POST", "/v1/completions", `{"model":"echo","prompt":"` + strings.Repeat("a ", 20) + `"}`, 400, "context_length_exceeded", ""},
		"five stops":         {"POST", "/v1/completions", `{"model":"echo","prompt":"a","stop":["1","2","3","4","5"]}`, 400, "invalid_value", "stop"},
		"empty stop":         {"POST", "/v1/completions", `{"model":"echo","prompt":"a","stop":""}`, 400, "invalid_value", "stop"},
		"numeric stop":       {"POST", "/v1/completions", `{"model":"echo","prompt":"a","stop":5}`, 400, "invalid_value", "stop"},
		"options, no stream": {"POST", "/v1/completions", `{"model":"echo","prompt":"a","stream_options":{}}`, 400, "invalid_value", "stream_options"},
		"oversize body":      {"POST", "/v1/completions", `{"model":"echo","prompt":"` + strings.Repeat("a", 2000) + `"}`, 413, "request_too_large", ""},
		"wrong method":       {"GET", "/v1/completions", ``, 405, "method_not_allowed", ""},
		"unknown path":       {"POST", "/v1/embeddings", `{}`, 404, "not_found", ""},
		"fault API is off":   {"POST", "/faults", `{"hang":true}`, 404, "not_found", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := e.do(tc.method, tc.path, tc.body)
			require.Equal(t, tc.status, r.status, string(r.body))
			got := parse[clientError](t, r.body).Error
			require.NotEmpty(t, got.Message)
			require.NotEmpty(t, got.Type)
			require.NotNil(t, got.Code)
			require.Equal(t, tc.code, *got.Code)
			if tc.param == "" {
				require.Nil(t, got.Param)
			} else {
				require.NotNil(t, got.Param)
				require.Equal(t, tc.param, *got.Param)
			}
		})
	}
	require.EqualValues(t, 1, e.metric("modelserver_http_responses_total", "code", "413"))
}

func TestModels_AreListed(t *testing.T) {
	e := startReady(t, Config{Model: "acme/parrot"})
	type object struct{ ID, Object string }
	list := parse[struct {
		Object string
		Data   []object
	}](t, e.do("GET", "/v1/models", "").body)
	require.Equal(t, "list", list.Object)
	require.Equal(t, []object{{"acme/parrot", "model"}}, list.Data)
	require.Equal(t, "acme/parrot", parse[object](t, e.do("GET", "/v1/models/acme/parrot", "").body).ID)
}

func TestPages_OfAnyOriginMayUseTheServer(t *testing.T) {
	e := startReady(t, Config{Engine: EngineConfig{Name: "vllm", APIKeys: []string{"k"}}})
	call := func(method, path string, header http.Header) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), method, e.url+path, http.NoBody)
		require.NoError(t, err)
		req.Header = header
		res, err := e.client.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res
	}
	preflight := call("OPTIONS", "/v1/chat/completions", http.Header{
		"Origin": {"https://dash.example"}, "Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"authorization,content-type"},
	})
	require.Less(t, preflight.StatusCode, 300)
	require.Equal(t, "*", preflight.Header.Get("Access-Control-Allow-Origin"))
	require.Contains(t, preflight.Header.Get("Access-Control-Allow-Headers"), "authorization")
	require.Empty(t, preflight.Header.Get("Access-Control-Allow-Credentials"))
	refused := call("GET", "/v1/models", http.Header{"Origin": {"https://dash.example"}})
	require.Equal(t, http.StatusUnauthorized, refused.StatusCode)
	require.Equal(t, "*", refused.Header.Get("Access-Control-Allow-Origin"), "the page can read the error")
}
