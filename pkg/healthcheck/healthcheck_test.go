package healthcheck

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCodes_AreNumbersAndRanges(t *testing.T) {
	for _, bad := range []string{"", "2xx", "99", "199", "600", "0204", "+204", "204-", "-204", "200-", "200-299-300", "299-200", "200 - 299", "200,204", "200-600"} {
		_, err := ParseCodes([]string{"204", bad})
		var code *CodeError
		require.ErrorAs(t, err, &code, bad)
		require.Equal(t, 1, code.Index)
		require.Equal(t, bad, code.Text)
	}
	for _, c := range []struct {
		codes      string
		pass, fail []int
	}{
		{"", []int{200, 204, 302, 399}, []int{199, 400, 404, 503}},
		{"204", []int{204}, []int{200, 203, 205, 302}},
		{"200-299", []int{200, 299}, []int{199, 300}},
		{"200-200", []int{200}, []int{201}},
		{"200-204 404 500-599", []int{200, 204, 404, 500, 599}, []int{205, 302, 403, 405, 499}},
		{"200-300 250-350", []int{200, 350}, []int{351}},
	} {
		got, err := ParseCodes(strings.Fields(c.codes))
		require.NoError(t, err, c.codes)
		for _, status := range c.pass {
			require.True(t, got.Pass(status), "%q %d", c.codes, status)
		}
		for _, status := range c.fail {
			require.False(t, got.Pass(status), "%q %d", c.codes, status)
		}
	}
}

func TestCodes_AreValidStatuses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.StringMatching(`[0-9]{1,4}(-[0-9]{0,4})?`), 1, 4).Draw(t, "texts")
		codes, err := ParseCodes(texts)
		if err != nil {
			return
		}
		require.Len(t, codes, len(texts))
		for status := range 1000 {
			require.True(t, !codes.Pass(status) || status >= 200 && status <= 599, "%v %d", texts, status)
		}
	})
}

func TestCheck_PassesByCode(t *testing.T) {
	elsewhere := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(elsewhere.Close)
	away := strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)
	mux := http.NewServeMux()
	answer := func(path string, code int, location string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if r.UserAgent() != "tester" {
				code = http.StatusTeapot
			}
			if location != "" {
				w.Header().Set("Location", location)
			}
			w.WriteHeader(code)
		})
	}
	answer("/ok", 200, "")
	answer("/none", 204, "")
	answer("/absent", 404, "")
	answer("/loads", 503, "")
	answer("/to-ok", 307, "/ok")
	answer("/to-loads", 307, "/loads")
	answer("/round", 302, "/round")
	answer("/away", 302, away)
	mux.HandleFunc("GET /asks-for-get", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusMethodNotAllowed)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	for _, c := range []struct{ method, path, codes, says string }{
		{"GET", "/ok", "", ""},
		{"GET", "/none", "", ""},
		{"GET", "/absent", "", "GET /absent answered 404 Not Found"},
		{"GET", "/loads", "", "503"},
		{"GET", "/to-ok", "", ""},
		{"GET", "/to-loads", "", "503"},
		{"GET", "/round", "", "more than 10 redirects"},
		{"GET", "/away", "", ""},
		{"GET", "/ok", "204", "GET /ok answered 200 OK"},
		{"GET", "/none", "204", ""},
		{"GET", "/absent", "200-299 404", ""},
		{"GET", "/loads", "200-299 404", "503"},
		{"GET", "/to-ok", "200-299", "307"},
		{"GET", "/to-loads", "307", ""},
		{"HEAD", "/ok", "", ""},
		{"HEAD", "/loads", "", "HEAD /loads answered 503"},
		{"HEAD", "/asks-for-get", "", "405"},
		{"HEAD", "/asks-for-get", "405", ""},
	} {
		codes, err := ParseCodes(strings.Fields(c.codes))
		require.NoError(t, err)
		check := Check{Method: c.method, Path: c.path, Codes: codes, Timeout: 30 * time.Second, Agent: "tester"}
		err = check.Do(t.Context(), &http.Transport{DisableKeepAlives: true}, strings.TrimPrefix(server.URL, "http://"))
		if c.says == "" {
			require.NoError(t, err, "%+v", c)
		} else {
			require.ErrorContains(t, err, c.says, "%+v", c)
		}
	}
}

func TestCheck_FailsWithoutAnAnswer(t *testing.T) {
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	check := Check{Method: "GET", Path: "/health", Timeout: 50 * time.Millisecond}
	address := strings.TrimPrefix(server.URL, "http://")
	require.EqualError(t, check.Do(t.Context(), &http.Transport{}, address), "GET /health: no answer within 50ms")
	close(over)
	server.Close()
	check.Timeout = 30 * time.Second
	require.EqualError(t, check.Do(t.Context(), &http.Transport{}, address), address+": connection refused")
}
