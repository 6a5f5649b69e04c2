package access

import (
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/render"
)

// LogText reads the log of an instance's pod with the options. It returns the end of the log, at
// most 1 MiB. read is the number of bytes that were read.
func (a *API) LogText(ctx context.Context, p *corev1.Pod, options corev1.PodLogOptions) (text []byte, read int64, err error) {
	options.Container = render.ContainerName
	err = a.Call(ctx, fmt.Sprintf("logs of pod %s/%s", p.Namespace, p.Name), func(ctx context.Context) error {
		stream, err := a.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &options).Stream(ctx)
		if err != nil {
			return foundError(err)
		}
		defer func() { _ = stream.Close() }()
		counted := &counter{from: stream}
		text, err = lastBytes(counted, maxLogs)
		read = counted.n
		return err
	})
	return text, read, err
}

// counter counts the bytes that are read.
type counter struct {
	from io.Reader
	n    int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.from.Read(b)
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, fmt.Errorf("read the log: %w", err)
	}
	return n, err //nolint:wrapcheck // readers compare with io.EOF
}
