package controlplane

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// The version would tell attackers which known faults this release has.
func TestWelcome_ShowsNoVersion(t *testing.T) {
	version := Version
	t.Cleanup(func() { Version = version })
	Version = "v9.8.7"
	for _, accept := range []string{"", "text/html", "application/json"} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		req.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		serveWelcome(w, req)
		require.Less(t, w.Code, http.StatusBadRequest)
		require.NotContains(t, w.Body.String(), Version)
		for _, values := range w.Header() {
			require.NotContains(t, values, Version)
		}
	}
}
