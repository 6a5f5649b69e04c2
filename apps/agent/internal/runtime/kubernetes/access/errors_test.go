package access

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
)

func TestRejection_HasTheReasonOfTheAnswer(t *testing.T) {
	gr := schema.GroupResource{Group: "apps", Resource: "deployments"}
	terminating := apierrors.NewForbidden(gr, "chat", errors.New("being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, c := range []struct {
		err       error
		code      string
		retryable bool
		says      string
	}{
		{apierrors.NewBadRequest("no"), runtime.ReasonInvalidSpec, false, "no"},
		{apierrors.NewInvalid(schema.GroupKind{Kind: "Deployment"}, "chat", nil), runtime.ReasonInvalidSpec, false, "chat"},
		{apierrors.NewForbidden(gr, "chat", errors.New(`User "agent" cannot patch resource "deployments"`)), runtime.ReasonForbidden, true, `cannot patch resource "deployments"`},
		{terminating, runtime.ReasonUnavailable, true, "is being removed"},
		{apierrors.NewUnauthorized("expired"), runtime.ReasonForbidden, true, "credentials"},
		{apierrors.NewConflict(gr, "chat", errors.New("uid")), runtime.ReasonConflict, true, "uid"},
		{apierrors.NewMethodNotSupported(gr, "patch"), runtime.ReasonUnavailable, true, "patch"},
	} {
		rej := rejectionOf("apply Deployment ns/chat", c.err)
		require.Equal(t, c.code, rej.Code, "%v", c.err)
		require.Equal(t, c.retryable, rej.Retryable, "%v", c.err)
		require.Contains(t, rej.Message, c.says)
		require.Contains(t, rej.Message, "apply Deployment ns/chat")
	}
	require.True(t, isAnswer(apierrors.NewConflict(gr, "chat", nil)))
	for _, err := range []error{apierrors.NewTooManyRequests("", 1), apierrors.NewInternalError(errors.New("x")), apierrors.NewServiceUnavailable("x"), errors.New("connection refused")} {
		require.False(t, isAnswer(err), "%v", err)
	}
}
