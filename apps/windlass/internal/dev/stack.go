package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/windlass/internal/clientconfig"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
	"github.com/windlass-run/windlass/pkg/service"
)

// programGrace is the time that the control plane and an agent have to stop. Both stop in less time.
const programGrace = 25 * time.Second

// mariaDBChild returns the child that runs MariaDB. Its start stores the address of the database in dsn.
func (r *run) mariaDBChild(dsn *string) child {
	dir, port := r.layout.mariaDBDir(), r.ports[portMariaDB]
	return child{
		name: "mariadb", title: "MariaDB", detail: localAddress(port), log: filepath.Join(dir, "mariadbd.log"),
		urls: []string{"mysql://" + localAddress(port)},
		start: func(ctx context.Context) (server, error) {
			cfg := mariadb.Config{Dir: dir, Port: port, Progress: r.reportNote}
			if r.tls {
				file := r.certs.pairFile(partMariaDB)
				cfg.TLS = &mariadb.TLS{CA: r.layout.caFile(), Cert: file, Key: file}
			}
			s, err := mariadb.Start(ctx, cfg)
			if err != nil {
				return nil, err
			}
			r.setDatabase(s)
			if err := s.CreateDatabase(ctx, "windlass"); err != nil {
				return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
			}
			*dsn = s.DSN("windlass")
			return s, nil
		},
	}
}

// setDatabase stores the running server, so that its certificate can be reloaded.
func (r *run) setDatabase(s *mariadb.Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.maria = s
}

func (r *run) runningDatabase() *mariadb.Server {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.maria
}

// restateFrontChild returns the child that adds TLS to Restate's ports.
func (r *run) restateFrontChild() child {
	ingress, admin := r.ports[portRestateIngress], r.ports[portRestateAdmin]
	front := r.programChild(program{
		name: "restate-tls", title: "Restate TLS", command: commandFront, dir: r.layout.restateFrontDir(),
		urls: []string{r.urlOfPort(ingress), r.urlOfPort(admin)},
		ready: func(ctx context.Context) error {
			return frontReady(ctx, r.layout.caFile(), r.urlOfPort(ingress), r.urlOfPort(admin))
		},
		args: []string{
			"--dir=" + r.layout.restateDir(), "--ingress=" + localAddress(ingress), "--admin=" + localAddress(admin),
			"--pair=" + r.certs.pairFile(partRestate),
		},
	})
	front.detail = restateAddress(r.urlOfPort(admin))
	return front
}

// restateAddress writes the address of Restate that people open: the one of its admin API and its page.
func restateAddress(admin string) string { return admin + " (admin)" }

func (r *run) restateChild() child {
	dir, admin, ingress := r.layout.restateDir(), r.ports[portRestateAdmin], r.ports[portRestateIngress]
	if r.tls {
		return child{
			name: "restate", title: "Restate", log: filepath.Join(dir, "restate.log"),
			start: func(ctx context.Context) (server, error) {
				identity, _, err := r.certs.ensureIdentity()
				if err != nil {
					return nil, err
				}
				return restate.Start(ctx, restate.Config{
					Dir: dir, Sockets: true, CA: r.layout.caFile(), IdentityKey: identity, Progress: r.reportNote,
				})
			},
		}
	}
	return child{
		name: "restate", title: "Restate", detail: restateAddress(r.urlOfPort(admin)), log: filepath.Join(dir, "restate.log"),
		urls: []string{r.urlOfPort(ingress), r.urlOfPort(admin)},
		start: func(ctx context.Context) (server, error) {
			return restate.Start(ctx, restate.Config{
				Dir: dir, IngressPort: ingress, AdminPort: admin, NodePort: r.ports[portRestateNode], Progress: r.reportNote,
			})
		},
	}
}

// thisMachine are the networks that only this machine can reach.
const thisMachine = "127.0.0.0/8,::1/128"

// appDomain returns the domain of apps' hosts.
func (r *run) appDomain() string {
	if r.tls {
		return hostsBelowTLS
	}
	return hostsBelow
}

// urlOfPort returns the URL of a port.
func (r *run) urlOfPort(port int) string { return urlOf(r.tls, port) }

func (r *run) controlPlaneChild(dsn string) (child, error) {
	var more []string
	if r.tls {
		_, public, err := r.certs.ensureIdentity()
		if err != nil {
			return child{}, err
		}
		more = append(r.tlsArgs(partControlPlane, "--tls-", "--metrics-tls-", "--restate-tls-"), r.caArgs("--mysql-ca", "--restate-ca")...)
		more = append(more, "--restate-identity-key="+public)
	}
	dir := r.layout.controlPlaneDir()
	api, metrics, workflows := r.ports[portAPI], r.ports[portMetrics], r.ports[portWorkflows]
	return r.programChild(program{
		name: "controlplane", title: "control plane", command: commandControlPlane, dir: dir,
		urls: []string{r.urlOfPort(api)}, metrics: metrics,
		args: append([]string{
			"serve",
			"--listen=" + localAddress(api),
			"--mysql-dsn=" + dsn,
			"--restate-ingress=" + r.urlOfPort(r.ports[portRestateIngress]),
			"--restate-admin=" + r.urlOfPort(r.ports[portRestateAdmin]),
			"--restate-listen=" + localAddress(workflows),
			"--restate-advertise=" + r.urlOfPort(workflows),
			"--key-file=" + filepath.Join(dir, "keyset.json"), "--create-keyset",
			"--prometheus-url=" + r.opts.prometheus,
			// Only users of this machine deploy here.
			"--webhook-allow=" + thisMachine,
			"--registry-allow=" + thisMachine,
			"--domain=" + r.appDomain(),
			"--metrics-listen=" + localAddress(metrics),
			"--log-format=text",
		}, more...),
	}), nil
}

func (r *run) agentChild(region string, runtimeArgs []string) child {
	dir := r.layout.agentDir(region)
	metrics := r.ports[portAgent(region)]
	gateways := "" // none
	if r.layout.takesGateway(region) {
		gateways = r.urlOfPort(r.ports[portGateway(region)])
	}
	return r.programChild(program{
		name: "agent/" + region, title: "agent " + region, command: commandAgent, dir: dir,
		metrics: metrics,
		args: append([]string{
			"--server=" + r.urlOfPort(r.ports[portAPI]),
			"--data-dir=" + dataDir(dir),
			"--join-token-file=" + filepath.Join(dir, "join-token"),
			"--gateway-url=" + gateways,
			"--metrics-listen=" + localAddress(metrics),
			"--log-format=text",
		}, slices.Concat(runtimeArgs, r.tlsArgs(partAgent(region), "--metrics-tls-"), r.caArgs("--server-ca"))...),
	})
}

// hostsBelow is the domain of apps' hosts. Names below it resolve to this machine without a DNS server.
const hostsBelow = "localhost"

// hostsBelowTLS is the domain of apps' hosts with TLS. It has one label more, because clients refuse a
// certificate for *.localhost, as for a whole top-level domain.
const hostsBelowTLS = "windlass.localhost"

// gatewayDrain is the time that requests have to finish when the gateway stops. It is less than programGrace.
const gatewayDrain = 10 * time.Second

// gatewayChild returns the child that runs a region's gateway, which reaches the agent at the agent's socket.
func (r *run) gatewayChild(region string) child {
	dir := r.layout.gatewayDir(region)
	port, metrics := r.ports[portGateway(region)], r.ports[portGatewayMetrics(region)]
	listen := []string{"--listen=" + localAddress(port)}
	if r.tls {
		listen = append([]string{"--listen=", "--tls-listen=" + localAddress(port)}, r.tlsArgs(partGateway(region), "--tls-", "--metrics-tls-")...)
		listen = append(listen, r.caArgs("--neighbour-roots")...)
	}
	return r.programChild(program{
		name: "gateway/" + region, title: "gateway " + region, command: commandGateway, dir: dir,
		urls: []string{r.urlOfPort(port)}, metrics: metrics,
		args: append([]string{
			"--agent=unix:" + r.layout.agentSocket(region),
			"--data-dir=" + dataDir(dir),
			"--drain-timeout=" + gatewayDrain.String(),
			"--neighbour-allow=" + thisMachine,
			"--metrics-listen=" + localAddress(metrics),
			"--log-format=text",
		}, listen...),
	})
}

// podPolicy allows the annotations by which examples request faults from kubelab.
const podPolicy = "annotations: [kubelab.windlass.run/]\n"

// runtimeArgs returns the flags of the agent's runtime. first reports whether the region is the one that gets
// this machine's own GPUs.
func (r *run) runtimeArgs(region string, first bool) ([]string, error) {
	switch r.runtime {
	case runtimeKubernetes:
		pools := filepath.Join(r.layout.agentDir(region), "pools.yaml")
		if err := r.writePools(pools); err != nil {
			return nil, err
		}
		policy := filepath.Join(r.layout.agentDir(region), "pod-policy.yaml")
		if err := atomicfile.Write(policy, []byte(podPolicy), 0o600); err != nil {
			return nil, fmt.Errorf("write the pod policy: %w", err)
		}
		return []string{
			"--runtime=kubernetes",
			"--kubeconfig=" + kubeconfigFile(r.layout.kubelabDir(region)),
			"--pools-file=" + pools,
			"--pod-policy-file=" + policy,
			// This program, which is also the agent, as an image for kubelab.
			"--health-image=kubelab.local/host" + r.self + ":dev",
		}, nil
	case runtimeProcess:
		gpus := r.opts.gpus
		if gpus == "auto" && !first {
			// All regions share this machine, and a GPU is assigned to one instance.
			gpus = "none"
		}
		// Everything belongs to the user who runs dev: there is one tenant, with that user's rights.
		return []string{"--runtime=process", "--gpus=" + gpus, "--trust-all-tenants", "--image-command=vllm/vllm-openai=vllm serve", "--model-allow=127.0.0.0/8"}, nil
	default:
		return nil, fmt.Errorf("unknown runtime %q", r.runtime)
	}
}

// program is this binary with a hidden command.
type program struct {
	name, title, command, dir string
	urls                      []string
	metrics                   int
	// ready reports whether the program is ready, if it has no metrics listener that can be asked.
	ready func(ctx context.Context) error
	args  []string
}

func (r *run) programChild(p program) child {
	log := logFile(p.dir)
	var begin int64
	urls, ready := slices.Clone(p.urls), p.ready
	if ready == nil {
		urls = append(urls, r.urlOfPort(p.metrics))
		ready = func(ctx context.Context) error { return checkReady(ctx, r.urlOfPort(p.metrics), r.caFile()) }
	}
	return child{
		name: p.name, title: p.title, log: log, detail: strings.Join(p.urls, " "),
		urls: urls,
		start: func(ctx context.Context) (server, error) {
			// Arguments go through a file that only this user reads, because every user of the machine can
			// see a command line and these contain a password.
			b, err := json.Marshal(p.args)
			if err != nil {
				return nil, err
			}
			if err := atomicfile.Write(argsFile(p.dir), b, 0o600); err != nil {
				return nil, err
			}
			if _, err := proc.StopStray(ctx, recordFile(p.dir), programGrace); err != nil {
				return nil, fmt.Errorf("start %s: stop the one left behind: %w", p.title, err)
			}
			if st, err := os.Stat(log); err == nil && st.Size() <= proc.LogLimit {
				begin = st.Size()
			} else {
				begin = 0
			}
			started, err := proc.Start(proc.Spec{
				Name: p.title, Path: r.self,
				Args: []string{"dev", p.command, "--args-file", argsFile(p.dir)},
				Env:  r.programEnv(), RecordFile: recordFile(p.dir), LogFile: log,
			})
			if err != nil {
				return nil, err
			}
			return programServer{started}, nil
		},
		ready:     ready,
		lastWords: func() string { return lastLine(log, begin) },
	}
}

func logFile(dir string) string { return filepath.Join(dir, "log") }

type programServer struct{ *proc.Process }

func (s programServer) Stop(ctx context.Context) error { return s.Process.Stop(ctx, programGrace) }

// programEnv returns the environment of a program. It omits the CLI's variables, above all the key,
// because instances would inherit them. PATH begins with the folder of this binary, because an
// example's command is there, and ends with the folder of the examples' own binaries.
func (r *run) programEnv() []string {
	var out []string
	path := ""
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		switch name {
		case clientconfig.EnvAPIKey, clientconfig.EnvServer, clientconfig.EnvContext, clientconfig.EnvFile, envPrometheus:
		case "PATH":
			path = value
		default:
			out = append(out, kv)
		}
	}
	path = filepath.Dir(r.self) + string(filepath.ListSeparator) + path
	if dir := examplesDir(r.self); dir != "" {
		path += string(filepath.ListSeparator) + filepath.Join(dir, "bin")
	}
	return append(out, "PATH="+path)
}

// roleActive is the role that an agent of a cluster reports once it works.
const roleActive = "active"

// caFile returns the path of the CA that clients of this dev trust. It is empty without TLS.
func (r *run) caFile() string { return r.state.currentState().caFile(r.layout) }

// checkReady asks a program whether it is ready. The error names the checks that fail.
func checkReady(ctx context.Context, base, caFile string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", nil)
	if err != nil {
		return err
	}
	config, err := clientTLS(caFile)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotReady, errors.Unwrap(err))
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return err
	}
	var report service.Report
	if decodeErr := json.Unmarshal(body, &report); resp.StatusCode == http.StatusOK {
		// An agent on standby is healthy, and does nothing yet. Each region here has one agent, so it will
		// soon be active.
		if decodeErr == nil && report.Role != "" && report.Role != roleActive {
			return fmt.Errorf("%w: %s", errNotReady, report.Role)
		}
		return nil
	} else if decodeErr != nil {
		return fmt.Errorf("%w: %s", errNotReady, resp.Status)
	}
	var failing []string
	for name, c := range report.Checks {
		if !c.OK {
			failing = append(failing, name+": "+c.Error)
		}
	}
	slices.Sort(failing)
	return fmt.Errorf("%w: %s", errNotReady, strings.Join(failing, "; "))
}

// lastLine returns the last line that was written to a log after offset.
func lastLine(path string, offset int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err == nil {
		offset = max(offset, st.Size()-8<<10)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, offset, 8<<10))
	if err != nil {
		return ""
	}
	b = bytes.TrimSpace(b)
	return string(b[bytes.LastIndexByte(b, '\n')+1:])
}
