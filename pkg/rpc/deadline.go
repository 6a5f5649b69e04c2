package rpc

import (
	"context"
	"net/http"
	"time"
)

type controllerKey struct{}

// WithWriteDeadline makes SetWriteDeadline work for streams that next handles. Then a peer that stops reading ends
// only its own stream.
func WithWriteDeadline(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), controllerKey{}, http.NewResponseController(w))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// SetWriteDeadline sets the deadline of later writes to a stream that WithWriteDeadline wraps. It does nothing on
// a transport without deadlines.
func SetWriteDeadline(ctx context.Context, at time.Time) {
	if rc, ok := ctx.Value(controllerKey{}).(*http.ResponseController); ok {
		// Some transports have no deadlines. The stream's context still ends the stream.
		_ = rc.SetWriteDeadline(at)
	}
}
