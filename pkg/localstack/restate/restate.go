// Package restate runs a private Restate server as a child process.
//
// A directory belongs to one server at a time. A file in it records the server's process. With it, Start stops a
// server that a killed parent left running there. If the file is lost, RocksDB's lock still refuses a second
// server.
package restate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/localstack"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

const (
	// DefaultPartitions is the default of Config.Partitions. It is 1, because more partitions take more CPU
	// for each invocation. The number is fixed when a directory is first used.
	DefaultPartitions = 1
	// startDeadline limits a start, which takes longer with a large log.
	startDeadline = 2 * time.Minute
	// stopGrace is longer than the server's own shutdown-timeout, so that only a server that hangs is killed.
	stopGrace       = 15 * time.Second
	shutdownTimeout = "10s"
	// portAttempts is how often a start is tried, each time with other free ports, because another process may take
	// a port before the server binds it.
	portAttempts = 3
)

// Config configures a server.
type Config struct {
	// Dir is the private directory, which is created if missing. It is required.
	Dir string
	// IngressPort, AdminPort and NodePort are ports on 127.0.0.1. 0 means a free one. If another process has
	// taken the port, Start fails. See localstack.Ports.
	IngressPort, AdminPort, NodePort int
	// Partitions is ignored on a directory that was used before. Default: DefaultPartitions.
	Partitions int
	// Sockets makes the server listen only on Unix sockets in its directory. A Front in front of it adds TLS, which
	// the server does not support. IngressPort, AdminPort and NodePort are not used then.
	Sockets bool
	// CA is a PEM file with the CAs that the server trusts when it calls services by https. The server reads
	// it at its start. Default: the CAs of this machine.
	CA string
	// IdentityKey is a PEM file with the key by which the server signs its calls of services. Empty: the calls are
	// not signed. See NewIdentity.
	IdentityKey string
	// Relaxed is for tests: the server does not flush its log to the disk. Acknowledged data survives a kill -9 of
	// the server, but not a crash of the machine.
	Relaxed bool
	// DieWithParent makes the kernel kill the server when this process ends: see proc.Spec.
	DieWithParent bool
	// Logger may be nil.
	Logger *slog.Logger
	// Progress receives lines for people. It may be nil.
	Progress func(string)
}

// Server is a running Restate.
type Server struct {
	proc                 *proc.Process
	dir                  string
	ingress, admin, node int
}

// Start installs Restate if needed, and starts a server on the directory. It returns when the admin API and the
// ingress both serve.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Dir == "" {
		return nil, errors.New("start Restate: Dir is empty")
	}
	if cfg.Partitions < 0 || cfg.Partitions > 1024 {
		return nil, fmt.Errorf("start Restate: Partitions is %d: must be 1 to 1024", cfg.Partitions)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("start Restate: %w", err)
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	program, err := Ensure(ctx, cfg.Progress)
	if err != nil {
		return nil, err
	}
	pid, err := StopStray(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("start Restate: %w", err)
	}
	if pid != 0 {
		log.InfoContext(ctx, "stopped a Restate that an earlier run left behind", "pid", pid)
	}

	if cfg.Sockets {
		if path := AdminSocket(dir); len(path) > maxSocketPath || len(IngressSocket(dir)) > maxSocketPath {
			return nil, fmt.Errorf("start Restate: the path %s is too long for a socket, which may have %d bytes: use a shorter directory", path, maxSocketPath)
		}
	}
	free := cfg.IngressPort == 0 || cfg.AdminPort == 0 || cfg.NodePort == 0
	for attempt := 1; ; attempt++ {
		s := &Server{dir: dir}
		if cfg.Sockets {
			free = false
		} else if err := s.takePorts(cfg); err != nil {
			return nil, fmt.Errorf("start Restate: %w", err)
		}
		err := s.start(ctx, program, cfg)
		if err == nil {
			log.InfoContext(ctx, "Restate is ready", "pid", s.PID(), "ingress", s.IngressURL(), "admin", s.AdminURL())
			return s, nil
		}
		portLost := free && attempt < portAttempts && strings.Contains(strings.ToLower(err.Error()), "address already in use")
		if !portLost || ctx.Err() != nil {
			return nil, fmt.Errorf("start Restate: %w", err)
		}
	}
}

func (s *Server) takePorts(cfg Config) error {
	// A caller that sets a port has claimed it already, so only free ports are claimed here.
	wanted, free := localstack.Ports{}, localstack.Ports{Claims: localstack.ClaimsFolder()}
	for _, p := range []struct {
		name string
		want int
		got  *int
	}{
		{"ingress", cfg.IngressPort, &s.ingress},
		{"admin", cfg.AdminPort, &s.admin},
		{"node", cfg.NodePort, &s.node},
	} {
		ports := &wanted
		if p.want == 0 {
			ports = &free
		}
		port, taken, err := ports.Take(p.want)
		if err != nil {
			return fmt.Errorf("%s port: %w", p.name, err)
		}
		if taken {
			return fmt.Errorf("%s port %d is taken by another process", p.name, p.want)
		}
		*p.got = port
	}
	return nil
}

func (s *Server) start(ctx context.Context, program string, cfg Config) error {
	var logStart int64
	if st, err := os.Stat(s.LogFile()); err == nil && st.Size() <= proc.LogLimit {
		logStart = st.Size()
	}
	// The server leaves its temporary folders behind, so it gets its own folder for them, which is removed at
	// the next start.
	tmp := filepath.Join(s.dir, "tmp")
	err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o700))
	if err != nil {
		return err
	}
	s.proc, err = proc.Start(proc.Spec{
		Name: "Restate", Path: program,
		Args: []string{
			"--no-logo", "--base-dir", filepath.Join(s.dir, "data"),
			"--node-name", nodeName, "--cluster-name", "windlass",
		},
		Env: append(append(inheritedEnv(), "TMPDIR="+tmp), s.serverSettings(cfg)...), Dir: s.dir,
		RecordFile: RecordFile(s.dir), LogFile: s.LogFile(),
		DieWithParent: cfg.DieWithParent,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, fmt.Errorf("not ready after %s", startDeadline))
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if s.ping(ctx, cfg.Sockets) == nil {
			return nil
		}
		select {
		case <-s.proc.Done():
			return fmt.Errorf("the server ended (%w): %s (log: %s)", s.exitReason(), loggedError(s.LogFile(), logStart), s.LogFile())
		case <-ctx.Done():
			cause := context.Cause(ctx)
			return errors.Join(fmt.Errorf("%w (log: %s)", cause, s.LogFile()), s.Stop(context.WithoutCancel(ctx)))
		case <-tick.C:
		}
	}
}

// exitReason returns why the server ended. It is never nil.
func (s *Server) exitReason() error {
	if err := s.proc.Wait(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

// serverSettings returns the server's settings as environment variables. They limit its memory, because its defaults are
// for a dedicated machine and take much more than a laptop can spare.
func (s *Server) serverSettings(cfg Config) []string {
	partitions := cfg.Partitions
	if partitions == 0 {
		partitions = DefaultPartitions
	}
	local := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	env := []string{
		"DO_NOT_TRACK=1",
		"RESTATE_DISABLE_TELEMETRY=true",
		"RESTATE_DEFAULT_NUM_PARTITIONS=" + strconv.Itoa(partitions),
		"RESTATE_SHUTDOWN_TIMEOUT=" + shutdownTimeout,
		"RESTATE_LOG_FORMAT=compact",
		"RESTATE_LOG_DISABLE_ANSI_CODES=true",
		"RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE=256 MiB",
		"RESTATE_ADMIN__QUERY_ENGINE__MEMORY_SIZE=128 MiB",
		"RESTATE_BIFROST__RECORD_CACHE_MEMORY_SIZE=32 MiB",
		"RESTATE_WORKER__INVOKER__MEMORY_LIMIT=256 MiB",
		"RESTATE_WORKER__DATA_SERVICE_MEMORY_LIMIT=64 MiB",
	}
	if cfg.Sockets {
		env = append(env, "RESTATE_LISTEN_MODE=unix")
	} else {
		env = append(env,
			"RESTATE_LISTEN_MODE=tcp",
			"RESTATE_BIND_ADDRESS="+local(s.node),
			"RESTATE_ADVERTISED_ADDRESS=http://"+local(s.node)+"/",
			"RESTATE_INGRESS__BIND_ADDRESS="+local(s.ingress),
			"RESTATE_INGRESS__ADVERTISED_ADDRESS="+s.IngressURL()+"/",
			"RESTATE_ADMIN__BIND_ADDRESS="+local(s.admin),
			"RESTATE_ADMIN__ADVERTISED_ADDRESS="+s.AdminURL()+"/",
		)
	}
	if cfg.CA != "" {
		env = append(env, "SSL_CERT_FILE="+cfg.CA)
	}
	if cfg.IdentityKey != "" {
		env = append(env, "RESTATE_REQUEST_IDENTITY_PRIVATE_KEY_PEM_FILE="+cfg.IdentityKey)
	}
	if cfg.Relaxed {
		env = append(env, "RESTATE_LOG_SERVER__ROCKSDB_DISABLE_WAL_FSYNC=true")
	}
	return env
}

// inheritedEnv returns the environment of this process, without settings for another Restate such as a developer's
// own cluster.
func inheritedEnv() []string {
	var out []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "RESTATE_") && !strings.HasPrefix(kv, "SSL_CERT_") {
			out = append(out, kv)
		}
	}
	return out
}

// Ping returns an error unless the ingress and the admin API of a server both serve. Another process may have
// started the server.
func Ping(ctx context.Context, ingressURL, adminURL string) error {
	return pingListeners(ctx, &http.Transport{DisableKeepAlives: true}, ingressURL, adminURL)
}

// PingTLS is Ping over https, for a server behind a Front.
func PingTLS(ctx context.Context, config *tls.Config, ingressURL, adminURL string) error {
	return pingListeners(ctx, &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}, ingressURL, adminURL)
}

// PingSockets is Ping for a server with Config.Sockets, by its directory.
func PingSockets(ctx context.Context, dir string) error {
	sockets := map[string]string{"ingress:80": IngressSocket(dir), "admin:80": AdminSocket(dir)}
	return pingListeners(ctx, &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", sockets[address])
	}}, "http://ingress", "http://admin")
}

func (s *Server) ping(ctx context.Context, sockets bool) error {
	if sockets {
		return PingSockets(ctx, s.dir)
	}
	return Ping(ctx, s.IngressURL(), s.AdminURL())
}

func pingListeners(ctx context.Context, transport *http.Transport, ingressURL, adminURL string) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: transport}
	for _, url := range []string{adminURL + "/health", ingressURL + "/restate/health"} {
		if err := checkHealth(ctx, client, url); err != nil {
			return fmt.Errorf("ping Restate: %w", err)
		}
	}
	return nil
}

// checkHealth returns an error unless the URL answers with status 200.
func checkHealth(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}

// IngressURL returns the URL at which clients invoke services, without a slash at its end.
func (s *Server) IngressURL() string { return "http://127.0.0.1:" + strconv.Itoa(s.ingress) }

// AdminURL returns the URL at which clients register services, without a slash at its end.
func (s *Server) AdminURL() string { return "http://127.0.0.1:" + strconv.Itoa(s.admin) }

// Ports returns the ports in use.
func (s *Server) Ports() (ingress, admin, node int) { return s.ingress, s.admin, s.node }

// PID returns the server's pid.
func (s *Server) PID() int { return s.proc.PID() }

// LogFile returns the path of the server's log.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "restate.log") }

// Done returns a channel that is closed when the server has ended.
func (s *Server) Done() <-chan struct{} { return s.proc.Done() }

// Wait blocks until the server has ended. It returns nil for exit status 0.
func (s *Server) Wait() error { return s.proc.Wait() }

// Stop shuts the server down, and kills it after stopGrace or when ctx ends.
func (s *Server) Stop(ctx context.Context) error {
	if err := s.proc.Stop(ctx, stopGrace); err != nil {
		return fmt.Errorf("stop Restate: %w", err)
	}
	return nil
}

// RecordFile returns the path of the file that records the process of a directory's server. See proc.Find.
func RecordFile(dir string) string { return filepath.Join(dir, "restate.json") }

// StopStray stops the server that a killed parent left running on a directory, and returns its pid. 0: no server
// was running.
func StopStray(ctx context.Context, dir string) (int, error) {
	pid, err := proc.StopStray(ctx, RecordFile(dir), stopGrace)
	if err != nil {
		return 0, fmt.Errorf("stop the Restate left on %s: %w", dir, err)
	}
	return pid, nil
}

// loggedError returns the first error that the server logged after offset, or else its last line.
func loggedError(path string, offset int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) < offset {
		return "no log"
	}
	last := "no output"
	for line := range strings.Lines(string(b[offset:])) {
		line = strings.TrimSpace(line)
		if _, after, ok := strings.Cut(line, " ERROR "); ok {
			return strings.TrimSpace(after)
		}
		if line != "" {
			last = line
		}
	}
	return last
}
