package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// maxLogs bounds an answer to a request for logs.
const maxLogs = 1 << 20

// byUID finds a pod by the UID in an instance's id.
const byUID = "uid"

// pod is the pod that an instance is.
func (r *Runtime) pod(instanceID string) (*corev1.Pod, error) {
	uid, ok := render.UIDOf(instanceID)
	if !ok {
		return nil, runtime.ErrUnknownInstance
	}
	found := podsIn(r.caches.pods.GetIndexer().ByIndex(byUID, string(uid)))
	if len(found) == 0 {
		return nil, runtime.ErrUnknownInstance
	}
	return found[0], nil
}

// Logs reads the container's log from its node, through the API server. When the
// container has just been started again and said nothing yet, the run before is
// what people want to read.
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
	secrets := r.secretsOf(workloadOf(p))
	if !secrets.Known() {
		return nil, fmt.Errorf("logs of pod %s/%s: %w", p.Namespace, p.Name, runtime.ErrSecretsUnknown)
	}
	out, err := r.log(ctx, p, tailLines, false)
	if err == nil && len(bytes.TrimSpace(out)) == 0 && restarted(p) {
		if before, err := r.log(ctx, p, tailLines, true); err == nil {
			out = before
		}
	}
	return []byte(secrets.Blank(string(out))), err
}

func (r *Runtime) log(ctx context.Context, p *corev1.Pod, tailLines int, previous bool) ([]byte, error) {
	lines := int64(tailLines)
	var out []byte
	err := r.call(ctx, fmt.Sprintf("logs of pod %s/%s", p.Namespace, p.Name), func(ctx context.Context) error {
		// No limit in bytes: it would keep the beginning, and the end is asked for.
		stream, err := r.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
			Container: render.ContainerName, TailLines: &lines, Previous: previous,
		}).Stream(ctx)
		if err != nil {
			return found(err)
		}
		defer func() { _ = stream.Close() }()
		out, err = lastBytes(stream, maxLogs)
		return err
	})
	if isNotFound(err) {
		return nil, runtime.ErrUnknownInstance
	}
	return out, err
}

// lastBytes reads all of it and returns whole lines from its end, at most limit
// bytes of them.
func lastBytes(from io.Reader, limit int) ([]byte, error) {
	buffer := make([]byte, 0, 64<<10)
	chunk := make([]byte, 32<<10)
	cut := false
	for {
		n, err := from.Read(chunk)
		buffer = append(buffer, chunk[:n]...)
		if len(buffer) > 2*limit {
			buffer = append(buffer[:0], buffer[len(buffer)-limit:]...)
			cut = true
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
	}
	if len(buffer) > limit {
		buffer, cut = buffer[len(buffer)-limit:], true
	}
	if cut {
		if i := bytes.IndexByte(buffer, '\n'); i >= 0 {
			buffer = buffer[i+1:]
		}
	}
	return buffer, nil
}

func restarted(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.Name == render.ContainerName {
			return c.RestartCount > 0
		}
	}
	return false
}

// Restart deletes the pod with its grace: Kubernetes has no way to stop a container
// and start it again in its place. Another pod takes its place, as a new instance.
func (r *Runtime) Restart(ctx context.Context, instanceID string) error {
	if err := r.ready(ctx); err != nil {
		return err
	}
	p, err := r.pod(instanceID)
	if err != nil {
		return err
	}
	w := workloadOf(p)
	if o := r.caches.get(w); o != nil && o.GetAnnotations()[render.AnnotationPaused] == render.True {
		return paused(w)
	}
	err = r.deletePod(ctx, p, nil)
	if isNotFound(err) {
		return runtime.ErrUnknownInstance
	}
	return err
}

func (r *Runtime) deletePod(ctx context.Context, p *corev1.Pod, grace *int64) error {
	uid := p.UID
	return r.call(ctx, fmt.Sprintf("delete pod %s/%s", p.Namespace, p.Name), func(ctx context.Context) error {
		return found(r.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &uid},
		}))
	})
}

func indexNode(o metav1.Object) string {
	if p, ok := o.(*corev1.Pod); ok {
		return p.Spec.NodeName
	}
	return ""
}

// indexUID indexes pods by UID.
func indexUID(o metav1.Object) string { return string(o.GetUID()) }
