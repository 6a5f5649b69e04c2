package cors

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNew_RefusesInvalidOriginsByName(t *testing.T) {
	for want, cfg := range map[string]Config{
		`origin "*" with credentials`:                         {Origins: []string{"*"}, Credentials: true},
		`origin "chat.test" is not scheme://host`:             {Origins: []string{"chat.test"}},
		`origin "https://" is not scheme://host`:              {Origins: []string{"https://"}},
		`origin "https://*x.test": * stands for whole labels`: {Origins: []string{"https://*x.test"}},
	} {
		_, err := New(cfg)
		require.ErrorContains(t, err, want)
	}
}

func TestHeaders_WithoutOriginsNoneIsAllowed(t *testing.T) {
	p, err := New(Config{})
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Origin", "https://chat.test")
	require.Equal(t, http.Header{"Vary": {"Origin"}}, p.Headers(r))
}

func TestHeaders_MaxAgeIsInSeconds(t *testing.T) {
	for _, c := range []struct {
		age  *time.Duration
		want []string
	}{{nil, nil}, {new(time.Duration(0)), []string{"0"}}, {new(90 * time.Second), []string{"90"}}} {
		p, err := New(Config{Origins: []string{"*"}, MaxAge: c.age})
		require.NoError(t, err)
		r := httptest.NewRequest(http.MethodOptions, "/", nil)
		r.Header.Set("Origin", "https://chat.test")
		r.Header.Set("Access-Control-Request-Method", "GET")
		require.Equal(t, c.want, p.Headers(r)["Access-Control-Max-Age"])
	}
}

func FuzzHeaders_CopyOnlyAllowedValues(f *testing.F) {
	f.Add("https://a.example.com", "PUT", "x-key")
	f.Add("https://evil.test#.example.com", "GET", "")
	f.Fuzz(func(t *testing.T, origin, method, names string) {
		p, err := New(Config{Origins: []string{"https://*.example.com"}, Headers: []string{"*"}})
		require.NoError(t, err)
		r := httptest.NewRequest(http.MethodOptions, "/", nil)
		r.Header = http.Header{"Origin": {origin}, "Access-Control-Request-Method": {method}, "Access-Control-Request-Headers": {names}}
		got := p.Headers(r)
		if allowed := got.Get("Access-Control-Allow-Origin"); allowed != "" {
			require.Regexp(t, `^https://([a-z0-9_-]+\.)+example\.com$`, allowed)
		}
		require.Contains(t, []string{"", "GET", "HEAD", "POST", "OPTIONS"}, got.Get("Access-Control-Allow-Methods"))
		require.NotRegexp(t, `[\x00-\x08\x0a-\x1f<>;]`, got.Get("Access-Control-Allow-Headers"))
	})
}
