package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/access"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

// podOf returns the pod of an instance.
func (r *Runtime) podOf(instanceID string) (*corev1.Pod, error) {
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
	if err := r.awaitCaches(ctx); err != nil {
		return nil, err
	}
	p, err := r.podOf(instanceID)
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
	if err == nil && len(bytes.TrimSpace(out)) == 0 && hasRestarted(p) {
		if before, err := r.api.Log(ctx, p, tailLines, true); err == nil {
			out = before
		}
	}
	return []byte(secrets.Blank(string(out))), err
}

// Secrets implements runtime.SecretKeeper.
func (r *Runtime) Secrets(instanceID string) (*redact.Values, error) {
	p, err := r.podOf(instanceID)
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

func hasRestarted(p *corev1.Pod) bool {
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
	if err := r.awaitCaches(ctx); err != nil {
		return err
	}
	p, err := r.podOf(instanceID)
	if err != nil {
		return err
	}
	w := render.WorkloadOf(p)
	if o := r.caches.Get(w); o != nil && o.GetAnnotations()[render.AnnotationPaused] == render.True {
		return pausedRejection(w)
	}
	err = r.api.DeletePod(ctx, p, nil)
	if access.IsNotFound(err) {
		return runtime.ErrUnknownInstance
	}
	return err
}

// Loaders implements runtime.WithLoaders.
func (r *Runtime) Loaders() runtime.Loaders {
	if !r.render.HasLoaders() {
		return nil
	}
	return loaders{r}
}

// loaders are the loaders in the region's pods.
type loaders struct{ rt *Runtime }

// LoaderOf implements runtime.Loaders.
func (l loaders) LoaderOf(instanceID string) (runtime.Loader, error) {
	p, err := l.rt.podOf(instanceID)
	if err != nil {
		return runtime.Loader{}, err
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.Name != render.LoaderContainerName || len(c.Ports) == 0 || p.Status.PodIP == "" {
			continue
		}
		return runtime.Loader{
			Address: net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(c.Ports[0].ContainerPort))), Pod: string(p.UID),
			Key: render.LoaderKey(l.rt.render.NameKey, p.Namespace, p.Labels[render.LabelInstance]),
		}, nil
	}
	return runtime.Loader{}, runtime.ErrNoLoader
}
