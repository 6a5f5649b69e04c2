package signin

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLink_IsCheckedAndErrorsSayWhy(t *testing.T) {
	status, body := http.StatusOK, ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "Bearer wl_key", r.Header.Get("Authorization"))
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	defer server.Close()
	ask := func(s int, b string) (Link, error) {
		status, body = s, b
		return New(t.Context(), server.Client(), server.URL+"/", "wl_key")
	}

	link, err := ask(http.StatusOK, `{"link":"wll_abc-_9","expiresInMs":60000}`)
	require.NoError(t, err)
	require.Equal(t, Link{URL: server.URL + "/ui/#link=wll_abc-_9", ExpiresIn: time.Minute}, link)

	for body, want := range map[string]string{
		`{}`: "the answer has none", `{"link":"wll_\u001b[2J"}`: "the answer has none", `{"link":"https://evil.example"}`: "the answer has none",
		"404 page": "has no dashboard",
	} {
		_, err := ask(http.StatusOK, body)
		require.ErrorContains(t, err, want, body)
	}
	_, err = ask(http.StatusNotFound, "404 page not found")
	require.ErrorContains(t, err, "upgrade it")
	_, err = ask(http.StatusUnauthorized, `{"code":"unauthenticated","message":"the API key was revoked"}`)
	require.ErrorContains(t, err, "the API key was revoked")
	_, err = ask(http.StatusBadGateway, "<html>a proxy's page</html>")
	require.ErrorContains(t, err, "answers 502 Bad Gateway")
	require.NotContains(t, err.Error(), "upgrade")
}
