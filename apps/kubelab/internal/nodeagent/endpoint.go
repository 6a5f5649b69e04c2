package nodeagent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/workload"
)

// endpoint serves two APIs to the API server: the part of the kubelet's API for logs, and the metrics API. It listens on
// the nodes' address, which is this host's loopback address, and serves only reads.
type endpoint struct{ cert tls.Certificate }

// podSource finds the runs of pods and their logs.
type podSource interface {
	containerLog(ctx context.Context, pod types.NamespacedName, container string, previous bool) (*workload.Log, error)
	podRuns(ctx context.Context) ([]runsOfPod, error)
}

func newEndpoint(address string) (*endpoint, error) {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", address, err)
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey(address, []net.IP{addr.AsSlice()}, nil)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", address, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", address, err)
	}
	return &endpoint{cert: pair}, nil
}

// serve answers until ctx ends.
func (e *endpoint) serve(ctx context.Context, listener net.Listener, source podSource, client kubernetes.Interface) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		serveLog(w, r, source)
	})
	metricsAPI{source, client}.handle(mux)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		TLSConfig:   &tls.Config{Certificates: []tls.Certificate{e.cert}, MinVersion: tls.VersionTLS12},
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ServeTLS(listener, "", ""); ctx.Err() == nil {
		return err
	}
	return nil
}

// logOptions are the options of a log request.
type logOptions struct {
	follow, previous, timestamps bool
	tail                         int // -1 means all lines
	since                        time.Time
	limit                        int64 // -1 means no limit
}

func parseLogOptions(q url.Values, now time.Time) (logOptions, error) {
	o := logOptions{tail: -1, limit: -1}
	for name, target := range map[string]*bool{"follow": &o.follow, "previous": &o.previous, "timestamps": &o.timestamps} {
		if text := q.Get(name); text != "" {
			value, err := strconv.ParseBool(text)
			if err != nil {
				return o, fmt.Errorf("%s must be true or false, not %q", name, text)
			}
			*target = value
		}
	}
	number := func(name string, set func(int64)) error {
		text := q.Get(name)
		if text == "" {
			return nil
		}
		value, err := strconv.ParseInt(text, 10, 64)
		if err != nil || value < 0 {
			return fmt.Errorf("%s must be a number of at least 0, not %q", name, text)
		}
		set(value)
		return nil
	}
	err := errors.Join(
		number("tailLines", func(n int64) { o.tail = int(n) }),
		number("limitBytes", func(n int64) { o.limit = n }),
		number("sinceSeconds", func(n int64) { o.since = now.Add(-time.Duration(n) * time.Second) }),
	)
	if text := q.Get("sinceTime"); text != "" {
		at, parseErr := time.Parse(time.RFC3339, text)
		if parseErr != nil {
			err = errors.Join(err, fmt.Errorf("sinceTime must be a time like 2026-01-02T15:04:05Z, not %q", text))
		}
		o.since = at
	}
	return o, err
}

func serveLog(w http.ResponseWriter, r *http.Request, source podSource) {
	options, err := parseLogOptions(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod")}
	log, err := source.containerLog(r.Context(), pod, r.PathValue("container"), options.previous)
	if err != nil {
		code := http.StatusBadRequest
		if missing := new(notFoundError); errors.As(err, &missing) {
			code = http.StatusNotFound
		}
		http.Error(w, err.Error(), code)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	// copyLog ends when the client is gone, and then its error cannot be sent.
	_ = copyLog(r.Context(), &flusher{w: w, control: http.NewResponseController(w)}, log, options)
}

// copyLog writes the lines that o selects. With follow it writes until the log is complete.
func copyLog(ctx context.Context, w io.Writer, log *workload.Log, o logOptions) error {
	lines, next, more := log.Since(0)
	if o.tail >= 0 {
		lines = lines[max(0, len(lines)-o.tail):]
	}
	left := o.limit
	for {
		var chunk []byte
		for _, line := range lines {
			if line.At.Before(o.since) {
				continue
			}
			if o.timestamps {
				chunk = line.At.UTC().AppendFormat(chunk, time.RFC3339Nano)
				chunk = append(chunk, ' ')
			}
			chunk = append(append(chunk, line.Text...), '\n')
		}
		if o.limit >= 0 {
			chunk = chunk[:min(int64(len(chunk)), left)]
			left -= int64(len(chunk))
		}
		if _, err := w.Write(chunk); err != nil {
			return err
		}
		if !o.follow || more == nil || left == 0 {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
		lines, next, more = log.Since(next)
	}
}

type flusher struct {
	w       io.Writer
	control *http.ResponseController
}

func (f *flusher) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, f.control.Flush()
}

type notFoundError struct{ what string }

func (e *notFoundError) Error() string { return e.what }

// ask runs f in the loop and returns its result. It may be called from any goroutine.
func ask[T any](ctx context.Context, l *loop, f func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	reply := make(chan answer, 1)
	select {
	case l.inbox <- func(time.Time) {
		value, err := f()
		reply <- answer{value, err}
	}:
	case <-l.stopped:
		return none, errors.New("the node agent is stopping")
	case <-ctx.Done():
		return none, ctx.Err()
	}
	select {
	case a := <-reply:
		return a.value, a.err
	case <-l.stopped:
		return none, errors.New("the node agent is stopping")
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// containerLog implements podSource, from any goroutine.
func (l *loop) containerLog(ctx context.Context, name types.NamespacedName, container string, previous bool) (*workload.Log, error) {
	return ask(ctx, l, func() (*workload.Log, error) { return l.findLog(name, container, previous) })
}

func (l *loop) findLog(name types.NamespacedName, container string, previous bool) (*workload.Log, error) {
	p := l.names[name]
	if p == nil {
		return nil, &notFoundError{fmt.Sprintf("pod %q does not exist", name.Name)}
	}
	if p.lost {
		return nil, fmt.Errorf("node %q is lost", p.object.Spec.NodeName)
	}
	if c, _ := containerOf(p.object, container); c == nil {
		return nil, &notFoundError{fmt.Sprintf("container %q not found in pod %q", container, name.Name)}
	}
	logs := p.logs[container]
	switch {
	case logs == nil:
		return nil, fmt.Errorf("container %q in pod %q is waiting to start", container, name.Name)
	case previous && logs.current.Closed():
		// Between two runs, the run that ended is the previous one.
		return logs.current, nil
	case previous && logs.previous == nil:
		return nil, fmt.Errorf("previous terminated container %q in pod %q not found", container, name.Name)
	case previous:
		return logs.previous, nil
	default:
		return logs.current, nil
	}
}
