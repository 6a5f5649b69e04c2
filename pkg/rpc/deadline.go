package rpc

import (
	"context"
	"net/http"
	"time"
)

type controllerKey struct{}

// WithWriteDeadline lets the streams behind next bound each of their writes, so
// that a peer that stopped reading ends its own stream and nothing else.
func WithWriteDeadline(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), controllerKey{}, http.NewResponseController(w))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// SetWriteDeadline bounds what is written to a stream behind WithWriteDeadline from now on.
// It does nothing on a transport that has no deadlines.
func SetWriteDeadline(ctx context.Context, at time.Time) {
	if rc, ok := ctx.Value(controllerKey{}).(*http.ResponseController); ok {
		// Not every transport can; the stream's context still ends it.
		_ = rc.SetWriteDeadline(at)
	}
}
