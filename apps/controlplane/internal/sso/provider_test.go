package sso

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// providerFolder has provider.mjs, and, after npm install, the npm package oidc-provider.
const providerFolder = ".ci/npm/oidc-provider"

const redirectURL = "http://127.0.0.1:9/ui/sso/callback"

// runProvider runs npm's oidc-provider, because it is a different implementation of the standard from mockoidc.
func runProvider(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", "..", "..", ".."))
	require.NoError(t, err)
	install, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	installed, err := exec.CommandContext(install, filepath.Join(root, ".ci", "packages"), providerFolder).CombinedOutput()
	require.NoError(t, err, "%s", installed)
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	ctx, stop := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, "node", "provider.mjs", port, redirectURL)
	c.Dir, c.Stderr = filepath.Join(root, providerFolder), t.Output()
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { stop(); _ = c.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == "ready" {
			break
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return "http://127.0.0.1:" + port
}

// person is a browser that fills in the provider's forms.
type person struct {
	t    *testing.T
	http *http.Client
}

func newPerson(t *testing.T) person {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	return person{t, &http.Client{Jar: jar, Timeout: 30 * time.Second, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.String(), redirectURL) {
			return http.ErrUseLastResponse
		}
		return nil
	}}}
}

var (
	formAction = regexp.MustCompile(`<form[^>]*action="([^"]+)"`)
	formInput  = regexp.MustCompile(`<input[^>]*>`)
	inputName  = regexp.MustCompile(` name="([^"]+)"`)
	inputValue = regexp.MustCompile(` value="([^"]*)"`)
)

// fill submits forms until the provider sends the browser back, or a page without a form.
func (p person) fill(to string, values map[string]string) (last *url.URL, page string) {
	p.t.Helper()
	res, err := p.http.Get(to)
	for range 8 {
		require.NoError(p.t, err)
		body, err2 := io.ReadAll(res.Body)
		require.NoError(p.t, err2)
		require.NoError(p.t, res.Body.Close())
		if location, err := res.Location(); err == nil && strings.HasPrefix(location.String(), redirectURL) {
			return location, ""
		}
		page = string(body)
		action := formAction.FindStringSubmatch(page)
		if action == nil {
			return res.Request.URL, page
		}
		form := url.Values{}
		for _, in := range formInput.FindAllString(page, -1) {
			if name := inputName.FindStringSubmatch(in); name != nil {
				value := append(inputValue.FindStringSubmatch(in), "", "")[1]
				form.Set(name[1], value)
			}
		}
		for name, value := range values {
			if form.Has(name) {
				form.Set(name, value)
			}
		}
		target, err3 := res.Request.URL.Parse(action[1])
		require.NoError(p.t, err3)
		res, err = p.http.PostForm(target.String(), form)
	}
	p.t.Fatalf("too many forms; the last page is %s", page)
	return nil, ""
}

func TestProvider_CodeAndDeviceFlowWork(t *testing.T) {
	issuer := runProvider(t)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("s3cret-of-the-client"), 0o600))
	service, err := New(Config{Issuer: issuer, ClientID: "windlass", SecretFile: secret, Scopes: []string{"profile", "email"}})
	require.NoError(t, err)

	t.Run("code", func(t *testing.T) {
		to, err := service.AuthURL(t.Context(), redirectURL, "state-1", "nonce-1", strings.Repeat("v", 43))
		require.NoError(t, err)
		back, page := newPerson(t).fill(to, map[string]string{"login": "ada", "password": "x"})
		require.Equal(t, "state-1", back.Query().Get("state"), page)
		require.Equal(t, issuer, back.Query().Get("iss"))
		code := back.Query().Get("code")
		_, err = service.Exchange(t.Context(), redirectURL, code+"x", "nonce-1", strings.Repeat("v", 43))
		require.ErrorIs(t, err, ErrCode)
		id, err := service.Exchange(t.Context(), redirectURL, code, "nonce-1", strings.Repeat("v", 43))
		require.NoError(t, err)
		require.Equal(t, "ada", id.Subject)
		require.Equal(t, "ada@example.com", id.Email)
		require.Equal(t, []string{"ml-team"}, id.Claims["groups"])
		_, err = service.Exchange(t.Context(), redirectURL, code, "nonce-1", strings.Repeat("v", 43))
		require.ErrorIs(t, err, ErrCode, "a code works once")
	})
	t.Run("code with another verifier or nonce", func(t *testing.T) {
		for verifier, want := range map[string]error{strings.Repeat("w", 43): ErrCode, strings.Repeat("v", 43): ErrNonce} {
			to, err := service.AuthURL(t.Context(), redirectURL, "s", "nonce-1", strings.Repeat("v", 43))
			require.NoError(t, err)
			back, _ := newPerson(t).fill(to, map[string]string{"login": "ada", "password": "x"})
			_, err = service.Exchange(t.Context(), redirectURL, back.Query().Get("code"), "another", verifier)
			require.ErrorIs(t, err, want)
		}
	})
	t.Run("device", func(t *testing.T) {
		d, err := service.StartDevice(t.Context())
		require.NoError(t, err)
		_, err = service.PollDevice(t.Context(), d.Code)
		require.ErrorIs(t, err, ErrPending)
		_, page := newPerson(t).fill(d.URL, map[string]string{"user_code": d.UserCode, "login": "bob", "password": "x"})
		require.Eventually(t, func() bool {
			id, err := service.PollDevice(t.Context(), d.Code)
			return err == nil && id.Subject == "bob"
		}, 30*time.Second, time.Second, page)
		_, err = service.PollDevice(t.Context(), d.Code)
		require.ErrorIs(t, err, ErrCode, "a device code works once")
	})
}
