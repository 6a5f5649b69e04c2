package access

import (
	"bytes"
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// maxLogs is the maximum size of a log that Log returns, in bytes.
const maxLogs = 1 << 20

// Log reads the last lines of the log of an instance's pod. With previous, it reads the log of the
// previous container instead of the running one.
func (a *API) Log(ctx context.Context, p *corev1.Pod, tailLines int, previous bool) ([]byte, error) {
	lines := int64(tailLines)
	var out []byte
	err := a.Call(ctx, fmt.Sprintf("logs of pod %s/%s", p.Namespace, p.Name), func(ctx context.Context) error {
		// LimitBytes is not set, because Kubernetes would then return the beginning of the log and
		// not its end.
		stream, err := a.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{
			Container: render.ContainerName, TailLines: &lines, Previous: previous,
		}).Stream(ctx)
		if err != nil {
			return foundError(err)
		}
		defer func() { _ = stream.Close() }()
		out, err = lastBytes(stream, maxLogs)
		return err
	})
	if IsNotFound(err) {
		return nil, runtime.ErrUnknownInstance
	}
	return out, err
}

// lastBytes reads to the end. It returns the last whole lines, at most limit bytes.
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
