package proxy

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// keyHeaders are where a request has its key, and what is before it there.
var keyHeaders = [...]struct{ name, lower, scheme string }{
	{"Authorization", "authorization", "Bearer "},
	{"X-Api-Key", "x-api-key", ""},
}

// admits reports whether the request has one of the app's keys, and notes which.
func (p *Proxy) admits(r *http.Request, x *exchange) bool {
	for _, h := range keyHeaders {
		values := r.Header[h.name]
		if len(values) == 1 && x.admits(values[0], h.scheme) {
			x.keyHeader, x.keyValue = h.name, values
			return true
		}
	}
	return false
}

// admits reports whether a field's value is one of the app's keys, and notes its name.
func (x *exchange) admits(value, scheme string) bool {
	if len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return false
	}
	key, ok := x.spec.Keys[upstream.Hash(sha256.Sum256([]byte(strings.TrimSpace(value[len(scheme):]))))]
	if !ok || !key.Until.IsZero() && !time.Now().Before(key.Until) {
		return false
	}
	x.key = key.Name
	return true
}
