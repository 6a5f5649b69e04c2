package gateway_test

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClosedPaths_ReachNoInstance checks both engines. A server of models loads and unloads models for every caller. So
// gateways must refuse such calls of clients.
func TestClosedPaths_ReachNoInstance(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		r := start(t, nil)
		var calls atomic.Int32
		at := instance(t, func(w http.ResponseWriter, q *http.Request) {
			calls.Add(1)
			_, _ = io.WriteString(w, q.URL.Path)
		})
		app := echo(at)
		app.ClosedPaths = []string{"/v2/repository"}
		r.put(t, app)
		for _, path := range []string{"/v2/repository/index", "/v2/repository/models/fraud/unload", "/v2/%72epository/index", "/x/..%2fv2/repository/index", "/v2//Repository/index?a=b"} {
			for _, body := range []string{"", "{}"} {
				res, text := r.do(t, r.request(t, http.MethodPost, path, body))
				require.Equal(t, []any{http.StatusForbidden, "closed_path"}, []any{res.StatusCode, res.Header.Get("Windlass-Error")}, path)
				require.Contains(t, text, "ERROR_REASON_PERMISSION_DENIED")
			}
		}
		require.Zero(t, calls.Load())
		_, text := r.do(t, r.request(t, http.MethodPost, "/v2/models/fraud/infer", "{}"))
		require.Equal(t, "/v2/models/fraud/infer", text)
	})
}
