package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/probe"
	grpcprobe "k8s.io/kubernetes/pkg/probe/grpc"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
	tcpprobe "k8s.io/kubernetes/pkg/probe/tcp"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/workload"
)

// checker runs probes. It probes model servers of this process by a function call, with the same results and
// messages as over a socket. For all other probes it uses the kubelet's code.
type checker struct {
	http    httpprobe.Prober
	tcp     tcpprobe.Prober
	grpc    grpcprobe.Prober
	spawner *workload.Spawner
}

func newChecker(spawner *workload.Spawner) *checker {
	return &checker{http: httpprobe.New(false), tcp: tcpprobe.New(), grpc: grpcprobe.New(), spawner: spawner}
}

// target is the container that is probed.
type target struct {
	object    *corev1.Pod
	container *corev1.Container
	run       *workload.Run
	addr      address
	env       func(context.Context) (map[string]string, error)
}

func (l *loop) targetOf(p *pod, r lifecycle.Ref) (target, bool) {
	run := p.runOf(r)
	container, _ := containerOf(p.object, r.Container)
	t := target{object: p.object, container: container, run: run, addr: address{pod: p.addr, node: l.cfg.NodeAddress}}
	t.env = func(ctx context.Context) (map[string]string, error) {
		return l.values.containerEnv(ctx, t.object, t.container, t.addr)
	}
	return t, run != nil && container != nil
}

func (l *loop) startCheck(p *pod, c lifecycle.Check) {
	t, ok := l.targetOf(p, c.Ref)
	if !ok {
		// The run has ended, and the loop will handle its exit.
		return
	}
	if call := inProcess(t, c.Spec); call != nil {
		go func() {
			a := call()
			l.post(func(now time.Time) { l.handleAnswer(p, c, a, now) })
		}()
		return
	}
	l.checks.addJob(func() func() {
		return func() {
			a := l.checker.runProbe(t, c.Spec)
			l.post(func(now time.Time) {
				l.checks.jobDone()
				l.handleAnswer(p, c, a, now)
			})
		}
	})
}

func (l *loop) handleAnswer(p *pod, c lifecycle.Check, a lifecycle.Answer, now time.Time) {
	if p.gone {
		return
	}
	if p.lost {
		// Answers from a lost node are dropped. When the node is back, the probe runs again.
		p.held = append(p.held, func(time.Time) { p.machine.Forget(c.Ref, c.Kind) })
		return
	}
	if p.machine.Probed(now, c.Ref, c.Kind, a) {
		l.advancePod(p, now)
		return
	}
	l.scheduleWake(p)
}

// inProcess returns the check as a function call, or nil if it needs a socket.
func inProcess(t target, spec *corev1.Probe) func() lifecycle.Answer {
	var host string
	switch {
	case spec.HTTPGet != nil && !strings.EqualFold(string(spec.HTTPGet.Scheme), "https"):
		host = spec.HTTPGet.Host
	case spec.TCPSocket != nil:
		host = spec.TCPSocket.Host
	default:
		return nil
	}
	if host != "" && host != t.addr.pod.String() {
		return nil
	}
	port, err := resolvePort(t, spec)
	if err != nil {
		return nil
	}
	handler, here := t.run.Handler(port)
	if !here {
		return nil
	}
	where := net.JoinHostPort(t.addr.pod.String(), strconv.Itoa(port))
	refused := fmt.Sprintf("dial tcp %s: connect: connection refused", where)
	if spec.TCPSocket != nil {
		return func() lifecycle.Answer { return lifecycle.Answer{OK: handler != nil, Output: refused} }
	}
	return func() lifecycle.Answer {
		req, err := httpprobe.NewRequestForHTTPGetAction(spec.HTTPGet, t.container, t.addr.pod.String(), "probe")
		if err != nil {
			return lifecycle.Answer{Err: err}
		}
		if handler == nil {
			return lifecycle.Answer{Output: fmt.Sprintf("Get %q: %s", req.URL, refused)}
		}
		return callHandler(handler, req, probeTimeout(spec))
	}
}

func resolvePort(t target, spec *corev1.Probe) (int, error) {
	if spec.HTTPGet != nil {
		return probe.ResolveContainerPort(spec.HTTPGet.Port, t.container)
	}
	return probe.ResolveContainerPort(spec.TCPSocket.Port, t.container)
}

func probeTimeout(spec *corev1.Probe) time.Duration {
	return time.Duration(max(spec.TimeoutSeconds, 1)) * time.Second
}

// callHandler makes an HTTP request without a network. The handler must end when its request's context ends.
func callHandler(handler http.Handler, req *http.Request, limit time.Duration) (a lifecycle.Answer) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	req = req.WithContext(ctx)
	req.RemoteAddr, req.RequestURI = "127.0.0.1:0", req.URL.RequestURI()
	if req.Host == "" {
		req.Host = req.URL.Host
	}
	defer func() {
		if recover() == nil && ctx.Err() == nil {
			return
		}
		a = lifecycle.Answer{Output: fmt.Sprintf("Get %q: EOF", req.URL)}
		if ctx.Err() != nil {
			a.Output = fmt.Sprintf("Get %q: context deadline exceeded (Client.Timeout exceeded while awaiting headers)", req.URL)
		}
	}()
	answer := &answerWriter{header: http.Header{}}
	handler.ServeHTTP(answer, req)
	code := answer.code
	if code == 0 {
		code = http.StatusOK
	}
	return lifecycle.Answer{OK: code >= 200 && code < 400, Output: fmt.Sprintf("HTTP probe failed with statuscode: %d", code)}
}

// answerWriter keeps only the status code and headers of a response.
type answerWriter struct {
	header http.Header
	code   int
}

func (w *answerWriter) Header() http.Header         { return w.header }
func (w *answerWriter) Write(p []byte) (int, error) { return len(p), nil }

func (w *answerWriter) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
}

// runProbe probes over the network, or runs the command.
func (c *checker) runProbe(t target, spec *corev1.Probe) lifecycle.Answer {
	var result probe.Result
	var output string
	var err error
	switch {
	case spec.HTTPGet != nil:
		var req *http.Request
		if req, err = httpprobe.NewRequestForHTTPGetAction(spec.HTTPGet, t.container, t.addr.pod.String(), "probe"); err == nil {
			result, output, err = c.http.Probe(req, probeTimeout(spec))
		}
	case spec.TCPSocket != nil:
		var port int
		if port, err = resolvePort(t, spec); err == nil {
			host := spec.TCPSocket.Host
			if host == "" {
				host = t.addr.pod.String()
			}
			result, output, err = c.tcp.Probe(host, port, probeTimeout(spec))
		}
	case spec.GRPC != nil:
		service := ""
		if spec.GRPC.Service != nil {
			service = *spec.GRPC.Service
		}
		result, output, err = c.grpc.Probe(t.addr.pod.String(), service, int(spec.GRPC.Port), probeTimeout(spec))
	case spec.Exec != nil:
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout(spec))
		defer cancel()
		if err := c.execInContainer(ctx, t, spec.Exec.Command); err != nil {
			return lifecycle.Answer{Output: err.Error()}
		}
		return lifecycle.Answer{OK: true}
	default:
		err = errors.New("the probe has no handler")
	}
	if err != nil {
		return lifecycle.Answer{Err: err}
	}
	return lifecycle.Answer{OK: result == probe.Success || result == probe.Warning, Output: output}
}

// execInContainer runs a command with the container's environment and working directory.
func (c *checker) execInContainer(ctx context.Context, t target, command []string) error {
	if _, host := hostImage(t.container.Image); !host {
		return fmt.Errorf("a model server of kubelab has no shell to run %q in; check it by httpGet", strings.Join(command, " "))
	}
	env, err := t.env(ctx)
	if err != nil {
		return err
	}
	_, err = c.spawner.Exec(ctx, workload.Host{Argv: command, Env: hostEnv(t.object, env), Dir: t.container.WorkingDir})
	return err
}

// startHook runs a preStop hook.
func (l *loop) startHook(p *pod, h lifecycle.Hook) {
	t, ok := l.targetOf(p, h.Ref)
	if !ok {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), h.Timeout)
		defer cancel()
		err := l.checker.runHook(ctx, t, h.Handler)
		l.post(func(now time.Time) {
			l.feedMachine(p, now, func(now time.Time) { p.machine.HookDone(now, h.Ref, err) })
		})
	}()
}

func (c *checker) runHook(ctx context.Context, t target, handler *corev1.LifecycleHandler) error {
	switch {
	case handler.Exec != nil:
		return c.execInContainer(ctx, t, handler.Exec.Command)
	case handler.HTTPGet != nil:
		req, err := httpprobe.NewRequestForHTTPGetAction(handler.HTTPGet, t.container, t.addr.pod.String(), "lifecycle")
		if err != nil {
			return err
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}
		resp, err := client.Do(req.WithContext(ctx))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode >= http.StatusBadRequest {
			var body bytes.Buffer
			_, _ = body.ReadFrom(http.MaxBytesReader(nil, resp.Body, 1<<10))
			return fmt.Errorf("status code %d: %s", resp.StatusCode, body.String())
		}
		return nil
	default:
		return nil // a deprecated kind that the kubelet does not run either
	}
}
