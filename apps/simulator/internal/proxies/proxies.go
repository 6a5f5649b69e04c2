// Package proxies runs proxies in front of the same instances: the gateway, and well-known ones from the
// system's packages. It contains the instances, the configuration of each proxy, and the load.
//
//	wrk, or streams of this process ──▶ one proxy, two cores ──▶ two instances
//
// Instances that answer at once are nginx, which costs less than any proxy in front of it. Instances that
// stream are in this process. Every proxy keeps connections to both instances, balances between them in turn,
// forwards streams without delay, and writes no log.
package proxies

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/localstack"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

const (
	// GatewayCommand runs the simulator's binary as the gateway.
	GatewayCommand = "run-gateway"
	// Host is the host of the requests.
	Host = "bench.test"

	startTimeout = 30 * time.Second
	stopTimeout  = 10 * time.Second
)

// Proxy is a running proxy.
type Proxy struct {
	Name string
	// Address is the host:port for immediate answers, and Streams is the host:port for streams.
	Address, Streams string
	*proc.Process
}

// Close stops the proxy.
func (p *Proxy) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return p.Stop(ctx, stopTimeout/2)
}

// Harness runs the compared proxies and their instances.
type Harness struct {
	dir, self, libraries string
	ports                localstack.Ports
	agent                *agent
	// answering and streaming are addresses of the instances.
	answering, streaming []string
	close                []func() error
}

// Missing returns an error that names missing programs and what to do. libraries is the program of .ci/peers,
// or empty.
func Missing(peers []string, libraries string) error {
	var missing []string
	for _, name := range append([]string{"wrk", "nginx"}, peers...) {
		switch name {
		case "wrk", "nginx", "haproxy":
			if _, err := find(name); err != nil {
				missing = append(missing, name)
			}
		case "bare", "net":
		case "fasthttp", "hertz":
			if libraries == "" {
				return fmt.Errorf("--peers: %s: build the program in .ci/peers, and give it as --libraries", name)
			}
		default:
			return unknownError(name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not found: %s: install Debian's packages wrk, nginx-light and haproxy, or name other --peers (nginx has the instances, too)", strings.Join(missing, ", "))
	}
	return nil
}

func unknownError(name string) error {
	return fmt.Errorf("--peers: %q: use net, bare, fasthttp, hertz, nginx or haproxy", name)
}

// find also searches the folder of daemons, which is not in the PATH of every user.
func find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return exec.LookPath(filepath.Join("/usr/sbin", name))
}

// Open starts the instances in dir. self is the simulator's binary, and libraries the program of .ci/peers.
// events is the number of events in a stream.
func Open(ctx context.Context, dir, self, libraries string, events int) (h *Harness, err error) {
	h = &Harness{dir: dir, self: self, libraries: libraries, ports: localstack.Ports{Claims: localstack.ClaimsFolder()}}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	for range 2 {
		port, _, err := h.ports.Take(0)
		if err != nil {
			return h, err
		}
		h.answering = append(h.answering, localAddress(port))
		at, stop, err := serveStreams(ctx, events)
		if err != nil {
			return h, err
		}
		h.streaming, h.close = append(h.streaming, at), append(h.close, stop)
	}
	instances, err := h.start(ctx, "instances", "nginx", nginxArgs(dir, "instances", instancesConfig(h.answering)), h.answering...)
	if err != nil {
		return h, err
	}
	h.close = append(h.close, instances.Close)
	h.agent, err = newAgent(ctx, filepath.Join(dir, "agent.sock"), h.answering, h.streaming)
	if err != nil {
		return h, err
	}
	h.close = append(h.close, h.agent.close)
	return h, nil
}

// Close stops the proxies, and then the instances.
func (h *Harness) Close() error {
	var errs []error
	for _, stop := range slices.Backward(h.close) {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}

// Start starts a proxy by name: gateway, net (the gateway with the engine net), bare, fasthttp, hertz, nginx
// or haproxy. It runs until Close.
func (h *Harness) Start(ctx context.Context, name string) (*Proxy, error) {
	var at [2]string
	for i := range at {
		port, _, err := h.ports.Take(0)
		if err != nil {
			return nil, err
		}
		at[i] = localAddress(port)
	}
	path := name
	var args configured
	switch name {
	case "gateway", "net":
		// One gateway serves both hosts, which it distinguishes by name.
		at[1] = at[0]
		path = h.self
		engine := "auto"
		if name == "net" {
			engine = name
		}
		args = configured{args: []string{GatewayCommand, "--agent=unix:" + h.agent.socket, "--listen=" + at[0], "--log-level=warn", "--engine=" + engine}}
	case "bare":
		path = h.self
		args = configured{args: []string{BareCommand, at[0] + "=" + strings.Join(h.answering, ","), at[1] + "=" + strings.Join(h.streaming, ",")}}
	case "fasthttp", "hertz":
		path = h.libraries
		args = configured{args: []string{name, at[0] + "=" + strings.Join(h.answering, ","), at[1] + "=" + strings.Join(h.streaming, ",")}}
	case "nginx":
		args = nginxArgs(h.dir, name, nginxConfig(at, h.answering, h.streaming))
	case "haproxy":
		file := filepath.Join(h.dir, "haproxy.cfg")
		args = configured{file: file, text: haproxyConfig(at, h.answering, h.streaming), args: []string{"-db", "-f", file}}
	default:
		return nil, unknownError(name)
	}
	p, err := h.start(ctx, name, path, args, at[:]...)
	if err != nil {
		return nil, err
	}
	out := &Proxy{Name: name, Address: at[0], Streams: at[1], Process: p.Process}
	h.close = append(h.close, out.Close)
	for _, url := range []string{"http://" + out.Address, "http://" + out.Streams + "/stream"} {
		if err := awaitRoute(ctx, url); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return out, nil
}

// configured describes how a program is started.
type configured struct {
	file, text string
	args       []string
}

func (h *Harness) start(ctx context.Context, name, program string, how configured, listens ...string) (*Proxy, error) {
	path, err := find(program)
	if filepath.IsAbs(program) {
		path, err = program, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if how.file != "" {
		if err := os.MkdirAll(filepath.Dir(how.file), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(how.file, []byte(how.text), 0o600); err != nil {
			return nil, err
		}
	}
	log := filepath.Join(h.dir, name+".log")
	p, err := proc.Start(proc.Spec{
		Name: name, Path: path, Args: how.args, Dir: h.dir, DieWithParent: true,
		RecordFile: filepath.Join(h.dir, name+".json"), LogFile: log,
	})
	if err != nil {
		return nil, err
	}
	out := &Proxy{Name: name, Process: p}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("it does not listen"))
	defer cancel()
	for _, at := range listens {
		if err := awaitListening(ctx, p, at); err != nil {
			said, _ := os.ReadFile(log) // the proxy's log, for people; empty if it cannot be read
			return nil, errors.Join(fmt.Errorf("%s: %w: %.500s", name, err, said), out.Close())
		}
	}
	return out, nil
}

func awaitListening(ctx context.Context, p *proc.Process, at string) error {
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", at)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.Done():
			return errors.New("it ended at once")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitRoute waits until a route is served.
func awaitRoute(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("it does not answer"))
	defer cancel()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for {
		_, err := readAnswer(ctx, client, url)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func localAddress(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
