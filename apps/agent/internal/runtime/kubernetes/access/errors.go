package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/pkg/backoff"
)

const (
	// attempts is the maximum number of attempts of one call. longestWait is the maximum wait for
	// the breaker before each attempt. A short failure is retried here, and an outage by the
	// caller.
	attempts    = 3
	longestWait = 2 * time.Second
)

// Call calls f, which must be safe to repeat. It calls f up to three times if the server cannot
// answer. Its error is a *runtime.Rejection, the error of ctx, or an error for which IsNotFound
// reports true.
func (a *API) Call(ctx context.Context, what string, f func(context.Context) error) error {
	for attempt := 1; ; attempt++ {
		wait, cause := a.breaker.mayPass(time.Now())
		for ; wait > 0; wait, cause = a.breaker.mayPass(time.Now()) {
			if wait > longestWait {
				return unavailableRejection(what, cause)
			}
			if err := backoff.Sleep(ctx, wait); err != nil {
				return err
			}
		}
		bounded, cancel := context.WithTimeout(ctx, a.cfg.CallTimeout)
		err := f(bounded)
		cancel()
		switch {
		case err == nil:
			a.breaker.noteSuccess()
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case IsNotFound(err):
			a.breaker.noteSuccess()
			return err
		case isAnswer(err):
			a.breaker.noteSuccess()
			if apierrors.IsForbidden(err) {
				a.rights.doubtAll()
			}
			return rejectionOf(what, err)
		}
		a.breaker.noteFailure(time.Now(), err)
		if attempt == attempts {
			return unavailableRejection(what, err)
		}
	}
}

// isAnswer reports whether the error is a definite answer of the server. If not, a retry may succeed.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code < http.StatusInternalServerError && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout
}

// isServerError reports whether the error is an answer with a status of 500 or more.
func isServerError(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= http.StatusInternalServerError
}

func unavailableRejection(what string, cause error) *runtime.Rejection {
	return &runtime.Rejection{Code: runtime.ReasonUnavailable, Message: fmt.Sprintf("%s: %v", what, cause), Retryable: true}
}

// BeingRemoved returns the rejection for an object that cannot be applied until its deletion is complete.
func BeingRemoved(at render.Ref) *runtime.Rejection {
	return &runtime.Rejection{
		Code: runtime.ReasonUnavailable, Retryable: true,
		Message: fmt.Sprintf("%s is still being removed; the agent makes it again after that", at),
	}
}

// rejectionOf converts an answer of the API server to the rejection of an assignment.
func rejectionOf(what string, err error) *runtime.Rejection {
	out := &runtime.Rejection{Code: runtime.ReasonUnavailable, Message: fmt.Sprintf("%s: %v", what, err), Retryable: true}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		out.Message = what + ": its namespace is being removed; the agent makes it again after that"
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		out.Code, out.Retryable = runtime.ReasonInvalidSpec, false
	case apierrors.IsUnauthorized(err):
		out.Code = runtime.ReasonForbidden
		out.Message = fmt.Sprintf("%s: the API server does not accept the agent's credentials: %v", what, err)
	case apierrors.IsForbidden(err):
		// The server's message names the verb, the resource and the namespace, or the
		// quota or policy that forbids it.
		out.Code = runtime.ReasonForbidden
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		out.Code = runtime.ReasonConflict
	}
	return out
}

// IsNotFound reports whether an error means that the object does not exist.
func IsNotFound(err error) bool { return errors.Is(err, errNotFound) }

var errNotFound = errors.New("not found")

// foundError replaces the API server's "not found" error by errNotFound, which Call returns unchanged.
func foundError(err error) error {
	if apierrors.IsNotFound(err) {
		return errNotFound
	}
	return err
}
