package proxy

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// keyHeaders are where a request has its key, and what is before it there.
var keyHeaders = []struct{ name, scheme string }{{"Authorization", "Bearer "}, {"X-Api-Key", ""}}

// admits tells whether the request has one of the app's keys, and notes which.
func (p *Proxy) admits(r *http.Request, x *exchange) bool {
	for _, h := range keyHeaders {
		values := r.Header[h.name]
		if len(values) != 1 || len(values[0]) < len(h.scheme) || !strings.EqualFold(values[0][:len(h.scheme)], h.scheme) {
			continue
		}
		key, ok := x.spec.Keys[upstream.Hash(sha256.Sum256([]byte(strings.TrimSpace(values[0][len(h.scheme):]))))]
		if ok && (key.Until.IsZero() || time.Now().Before(key.Until)) {
			x.key, x.keyHeader, x.keyValue = key.Name, h.name, values
			return true
		}
	}
	return false
}
