package kubernetes

import (
	"bytes"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

// pod returns the pod of an instance.
func (r *Runtime) pod(instanceID string) (*corev1.Pod, error) {
	uid, ok := render.UIDOf(instanceID)
	if !ok {
		return nil, runtime.ErrUnknownInstance
	}
	found := r.caches.PodsOfUID(uid)
	if len(found) == 0 {
		return nil, runtime.ErrUnknownInstance
	}
	return found[0], nil
}

// Logs reads the container's log from its node, through the API server. If a restarted container
// has written nothing yet, Logs returns the log of its previous run.
func (r *Runtime) Logs(ctx context.Context, instanceID string, tailLines int) ([]byte, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	p, err := r.pod(instanceID)
	if err != nil {
		return nil, err
	}
	if tailLines <= 0 {
		return nil, nil
	}
	secrets, err := r.secretsOf(p)
	if err != nil {
		return nil, err
	}
	out, err := r.api.Log(ctx, p, tailLines, false)
	if err == nil && len(bytes.TrimSpace(out)) == 0 && restarted(p) {
		if before, err := r.api.Log(ctx, p, tailLines, true); err == nil {
			out = before
		}
	}
	return []byte(secrets.Blank(string(out))), err
}

// Secrets implements runtime.SecretKeeper.
func (r *Runtime) Secrets(instanceID string) (*redact.Values, error) {
	p, err := r.pod(instanceID)
	if err != nil {
		return nil, err
	}
	return r.secretsOf(p)
}

func (r *Runtime) secretsOf(p *corev1.Pod) (*redact.Values, error) {
	secrets := r.wanted.secretsOf(render.WorkloadOf(p))
	if !secrets.Known() {
		return nil, fmt.Errorf("output of pod %s/%s: %w", p.Namespace, p.Name, runtime.ErrSecretsUnknown)
	}
	return secrets, nil
}

func restarted(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.Name == render.ContainerName {
			return c.RestartCount > 0
		}
	}
	return false
}

// Restart deletes the pod within its grace period, because Kubernetes cannot restart a container in
// place. Another pod, a new instance, takes its place.
func (r *Runtime) Restart(ctx context.Context, instanceID string) error {
	if err := r.ready(ctx); err != nil {
		return err
	}
	p, err := r.pod(instanceID)
	if err != nil {
		return err
	}
	w := render.WorkloadOf(p)
	if o := r.caches.Get(w); o != nil && o.GetAnnotations()[render.AnnotationPaused] == render.True {
		return paused(w)
	}
	err = r.api.DeletePod(ctx, p, nil)
	if access.IsNotFound(err) {
		return runtime.ErrUnknownInstance
	}
	return err
}
