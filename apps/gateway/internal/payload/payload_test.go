package payload_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/gateway/internal/payload"
)

func logged(t *testing.T, p *payload.Policy, f payload.Facts, request, answer string) (entry map[string]any) {
	t.Helper()
	var to bytes.Buffer
	l, err := payload.New(&to, func() float64 { return 0 }, prometheus.NewRegistry())
	require.NoError(t, err)
	e := l.Begin(p)
	for _, part := range strings.SplitAfter(request, ",") {
		e.Request.Write([]byte(part))
	}
	e.Answer.Write([]byte(answer))
	l.End(e, f)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.Run(ctx), context.Canceled)
	require.Equal(t, 1, strings.Count(to.String(), "\n"))
	require.NoError(t, json.Unmarshal(to.Bytes(), &entry))
	return entry
}

func TestRedaction_IsOfFieldsAtAnyDepth(t *testing.T) {
	t.Parallel()
	p := &payload.Policy{Sample: 1, MaxBytes: 1000, Redact: map[string]bool{"content": true, "user": true}}
	f := payload.Facts{Time: time.Unix(1, 0).UTC(), RequestID: "req_1", App: "chat", Method: "POST", Path: "/v1", Status: 200, AnswerType: "text/event-stream; charset=utf-8"}
	got := logged(t, p, f,
		`{"model": "m", "seed": 12345678901234567890, "user": {"name": "ann"}, "messages": [{"role": "user", "content": "secret"}]}`,
		"data: {\"choices\": [{\"delta\": {\"content\": \"secret\", \"role\": \"a\"}}]}\n\n: a secret comment\nsecret\n\ndata: secret\ndata: [DONE]\n\n")
	require.Equal(t, "req_1", got["request_id"])
	require.JSONEq(t, `{"model": "m", "seed": 12345678901234567890, "user": "[redacted]", "messages": [{"role": "user", "content": "[redacted]"}]}`,
		got["request"].(map[string]any)["body"].(string))
	answer := got["answer"].(map[string]any)
	require.Equal(t, "data: {\"choices\":[{\"delta\":{\"content\":\"[redacted]\",\"role\":\"a\"}}]}\ndata: [DONE]\n", answer["body"])
	require.Equal(t, "lines", answer["left_out"])
	for _, body := range []string{`secret`, `{"content": "secret"`, `{"a": 1} {"content": "secret"}`, `{"x": "` + strings.Repeat("x", 2000) + `", "content": "secret"}`} {
		got := logged(t, p, f, body, "")
		request := got["request"].(map[string]any)
		require.NotContains(t, request, "body", body)
		require.Contains(t, request["left_out"], "cannot be redacted")
		require.InDelta(t, len(body), request["bytes"], 0)
	}
}

func TestRedacted_FieldsNeverPass(t *testing.T) {
	t.Parallel()
	p := &payload.Policy{Sample: 1, MaxBytes: 200, Redact: map[string]bool{"content": true}}
	rapid.Check(t, func(r *rapid.T) {
		var value func(depth int) any
		value = func(depth int) any {
			if depth == 0 || rapid.IntRange(0, 3).Draw(r, "leaf") == 0 {
				return rapid.SampledFrom([]any{1, "plain", nil, true}).Draw(r, "plain")
			}
			if rapid.Bool().Draw(r, "list") {
				return []any{value(depth - 1), value(depth - 1)}
			}
			return map[string]any{"content": "secret" + rapid.StringMatching(`[a-z"\\]{0,9}`).Draw(r, "secret"), "a": value(depth - 1), "b": map[string]any{"content": []any{"secret", value(depth - 1)}}}
		}
		text, err := json.Marshal(value(3))
		require.NoError(r, err)
		kind := rapid.SampledFrom([]string{"application/json", "text/event-stream"}).Draw(r, "type")
		body := string(text)
		if kind == "text/event-stream" {
			body = "data: " + body + "\n\ndata: " + body
		}
		got, err := json.Marshal(logged(t, p, payload.Facts{AnswerType: kind}, "", body))
		require.NoError(r, err)
		require.NotContains(r, string(got), "secret")
	})
}

func TestPayload_BinaryAndLongAreMarked(t *testing.T) {
	t.Parallel()
	p := &payload.Policy{Sample: 1, MaxBytes: 4}
	got := logged(t, p, payload.Facts{}, "abcé-", "\xff\xfe\xfd\xfc")
	require.Equal(t, map[string]any{"bytes": 6.0, "body": "abc", "cut": true}, got["request"])
	require.Equal(t, map[string]any{"bytes": 4.0, "left_out": "it is not text"}, got["answer"])
	got = logged(t, p, payload.Facts{AnswerCoded: "gzip"}, "", "abc")
	require.Equal(t, map[string]any{"bytes": 0.0}, got["request"])
	require.Equal(t, map[string]any{"bytes": 3.0, "left_out": "its coding is gzip"}, got["answer"])
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

func TestPayload_RequestsDoNotWaitForTheLog(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	l, err := payload.New(broken{}, func() float64 { return 0.5 }, registry)
	require.NoError(t, err)
	require.Nil(t, l.Begin(&payload.Policy{Sample: 0.5}), "0.5 is not below Sample")
	require.Nil(t, l.Begin(nil))
	require.Nil(t, (*payload.Log)(nil).Begin(&payload.Policy{Sample: 1}))
	l.End(nil, payload.Facts{})
	for range 2000 {
		l.End(l.Begin(&payload.Policy{Sample: 1, MaxBytes: 10}), payload.Facts{})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, l.Run(ctx))
	count, err := testutil.GatherAndCount(registry, "windlass_gateway_payloads_dropped_total")
	require.NoError(t, err)
	require.Equal(t, 2, count, "there are two reasons: entries could not be written, or the log was behind")
}
