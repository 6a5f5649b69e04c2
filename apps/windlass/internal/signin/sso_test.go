package signin

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ssoServer is a control plane with the paths of sign-ins.
func ssoServer(t *testing.T, answer func(path string, in map[string]string, bearer string) (int, string)) Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ui/sso/provider" {
			_, _ = w.Write([]byte(`{"enabled":true}`))
			return
		}
		in := map[string]string{}
		_ = json.NewDecoder(r.Body).Decode(&in)
		status, body := answer(r.URL.Path, in, r.Header.Get("Authorization"))
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	return Client{HTTP: server.Client(), Server: server.URL + "/"}
}

const goodToken = `{"token":"wlt_abc","expiresInMs":60000,"renewAfterMs":30000}`

func TestBrowser_TokenComesThroughTheLoopbackAddress(t *testing.T) {
	challenge := ""
	c := ssoServer(t, func(path string, in map[string]string, _ string) (int, string) {
		require.Equal(t, "/ui/sso/token", path)
		require.Equal(t, "c-1", in["code"])
		sum := sha256.Sum256([]byte(in["verifier"]))
		require.Equal(t, challenge, base64.RawURLEncoding.EncodeToString(sum[:]))
		return http.StatusOK, goodToken
	})
	visit := func(port, query string) int {
		res, err := http.Get("http://127.0.0.1:" + port + "/?" + query)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	token, err := c.Browser(t.Context(), "acme", func(to, confirmation string) {
		u, err := url.Parse(to)
		require.NoError(t, err)
		q := u.Query()
		require.Regexp(t, "^[A-Z2-7]{4}-[A-Z2-7]{4}$", confirmation)
		require.Equal(t, confirmation, q.Get("confirmation"))
		require.Equal(t, "/ui/sso/login", u.Path)
		require.Equal(t, "acme", q.Get("workspace"))
		challenge = q.Get("challenge")
		require.Equal(t, http.StatusNotFound, visit(q.Get("port"), "code=evil&state=wrong"), "another page cannot end the sign-in")
		go visit(q.Get("port"), url.Values{"code": {"c-1"}, "state": {q.Get("state")}}.Encode())
	})
	require.NoError(t, err)
	require.Equal(t, Token{Value: "wlt_abc", ExpiresIn: time.Minute, RenewAfter: 30 * time.Second}, token)

	_, err = c.Browser(t.Context(), "", func(to, _ string) {
		u, err := url.Parse(to)
		require.NoError(t, err)
		go visit(u.Query().Get("port"), url.Values{"error": {"No rule."}, "state": {u.Query().Get("state")}}.Encode())
	})
	require.EqualError(t, err, "No rule.")
}

func TestBrowser_IsNotWaitedForWithoutAnIssuer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"enabled":false}`)) }))
	defer server.Close()
	c := Client{HTTP: server.Client(), Server: server.URL}
	_, err := c.Browser(t.Context(), "", func(to, _ string) { t.Errorf("%s is shown", to) })
	require.ErrorContains(t, err, "it has no issuer: use an API key")
}

func TestDevice_IsPolledUntilThePersonSignedIn(t *testing.T) {
	polls := 0
	c := ssoServer(t, func(path string, in map[string]string, _ string) (int, string) {
		if path == "/ui/sso/device" {
			return http.StatusOK, `{"handle":"h","userCode":"AB-CD","url":"https://id.example/device","expiresInMs":60000,"intervalMs":1}`
		}
		require.Equal(t, "h", in["handle"])
		if polls++; polls == 1 {
			return http.StatusOK, `{"pending":true}`
		}
		return http.StatusOK, goodToken
	})
	shown := Device{}
	token, err := c.Device(t.Context(), "", func(d Device) { shown = d })
	require.NoError(t, err)
	require.Equal(t, "wlt_abc", token.Value)
	require.Equal(t, Device{UserCode: "AB-CD", URL: "https://id.example/device", ExpiresIn: time.Minute}, shown)
}

func TestToken_AnswersAreChecked(t *testing.T) {
	status, body := http.StatusOK, ""
	c := ssoServer(t, func(string, map[string]string, string) (int, string) { return status, body })
	ask := func(s int, b string) error {
		status, body = s, b
		_, err := c.Federated(t.Context(), "jwt", "")
		return err
	}
	require.NoError(t, ask(http.StatusOK, goodToken))
	require.ErrorContains(t, ask(http.StatusOK, `{"token":"wlt_\u001b[2J"}`), "without a token")
	require.ErrorContains(t, ask(http.StatusOK, `<html>`), "upgrade the control plane")
	require.ErrorContains(t, ask(http.StatusNotFound, `404`), "no single sign-on")
	err := ask(http.StatusUnauthorized, `{"message":"no rule","details":[{"debug":{"fix":"Ask."}}]}`)
	require.EqualError(t, err, "trade the token: no rule\nAsk.")
	require.True(t, IsOver(err))
	require.False(t, IsOver(ask(http.StatusBadGateway, "")))
	require.False(t, IsOver(fmt.Errorf("other")))
}
