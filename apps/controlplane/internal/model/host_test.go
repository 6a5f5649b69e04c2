package model_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func TestHost_IsALabelOfOneApp(t *testing.T) {
	const id = "app_0199a3f2c4d87b1e9c3f5a6b7c8d9e0f"
	a := model.Host(model.App{ID: id, Name: "chat"}, "example.test")
	require.Equal(t, "chat-5a6b7c8d9e0f.example.test", a)
	require.Equal(t, "v7-chat-5a6b7c8d9e0f.example.test", model.PreviewHost(id, "chat", 7, "example.test"))

	name := strings.Repeat("a", 49) + "-" + strings.Repeat("b", 13)
	for _, long := range []string{model.Host(model.App{ID: id, Name: name}, "x"), model.PreviewHost(id, name, math.MaxInt32, "x")} {
		require.LessOrEqual(t, len(strings.TrimSuffix(long, ".x")), 63)
		require.NotContains(t, long, "--")
		require.True(t, strings.HasSuffix(long, "-5a6b7c8d9e0f.x"))
	}
}

func TestDomain_IsAWholeName(t *testing.T) {
	for text, want := range map[string]string{
		"Chat.Example.COM.": "chat.example.com", "xn--bcher-kva.example": "xn--bcher-kva.example", "a-b.c1": "a-b.c1",
	} {
		got, err := model.ParseDomain(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for text, says := range map[string]string{
		"": "no dot", "localhost": "no dot", "https://chat.example.com": "an address", "chat.example.com:443": "an address",
		"chat.example.com/v1": "an address", "*.example.com": "wildcard", "10.0.0.1": "its last part is a number",
		"-a.example.com": "dashes", "a..com": "1 to 63", strings.Repeat("a", 64) + ".com": "1 to 63",
		"b\u00fccher.example": "xn--", "chat_1.example.com": "letters, digits", strings.Repeat("a.", 123) + "com": "longer",
	} {
		_, err := model.ParseDomain(text)
		require.ErrorContains(t, err, says, text)
	}
}
