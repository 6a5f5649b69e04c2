package onnxserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
)

const (
	// bodyTimeout limits the time to read a request, and writeTimeout the time to write its answer, so that a client that
	// stops does not hold a model.
	bodyTimeout  = 30 * time.Second
	writeTimeout = 30 * time.Second
)

var errDrainTimeout = errors.New("the server stopped before the request ended")

// Server is one server of models. Create it with New, and call Run once.
type Server struct {
	cfg      Config
	log      *slog.Logger
	models   *modelSet
	slots    *semaphore.Weighted
	running  atomic.Int64
	waiting  atomic.Int64
	metrics  *metrics
	registry *prometheus.Registry
	handler  http.Handler
	draining atomic.Bool
}

// New checks cfg and returns a server. It binds and loads nothing.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("onnxserver config: %w", err)
	}
	if cfg.Engine == nil {
		return nil, errors.New("onnxserver config: the engine is missing")
	}
	s := &Server{cfg: cfg, log: cfg.Logger, slots: semaphore.NewWeighted(int64(cfg.Concurrency))}
	s.models = &modelSet{limitMiB: cfg.ModelMemoryMiB, models: map[string]*model{}, open: s.openModel}
	s.metrics, s.registry = newMetrics(s)
	s.handler = s.newHandler()
	return s, nil
}

// Handler returns the handler of all endpoints, for HTTP and gRPC.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves until ctx ends, and then drains. It returns nil after a drain, and an error if it cannot serve.
func (s *Server) Run(ctx context.Context) error {
	listener := s.cfg.Listener
	if listener == nil {
		address := net.JoinHostPort(s.cfg.Host, strconv.Itoa(s.cfg.Port))
		var err error
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", address); err != nil {
			return fmt.Errorf("cannot listen on %s (choose another --host or --port): %w", address, err)
		}
	}
	// Requests have a separate context, because the end of ctx starts the drain and must not cut them.
	requests, cutRequests := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cutRequests(nil)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: s.handler, Protocols: protocols,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return requests },
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	s.log.Info("listening", "address", listener.Addr().String(), "engine_version", s.cfg.Engine.Version(), "repository", s.cfg.ModelRepository)
	var err error
	select {
	case err = <-served:
		err = fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
		s.drain(context.WithoutCancel(ctx), server, cutRequests)
	}
	s.models.closeAll()
	return err
}

// drain waits up to DrainTimeout for requests, and cuts the rest.
func (s *Server) drain(ctx context.Context, server *http.Server, cutRequests context.CancelCauseFunc) {
	s.draining.Store(true)
	began := time.Now()
	s.log.Info("draining", "running", s.running.Load(), "waiting", s.waiting.Load(), "timeout", s.cfg.DrainTimeout)
	limited, cancel := context.WithTimeout(ctx, s.cfg.DrainTimeout)
	defer cancel()
	if server.Shutdown(limited) == nil {
		s.log.Info("drained", "took", time.Since(began))
		return
	}
	s.log.Warn("drain timeout passed, cutting requests", "running", s.running.Load(), "waiting", s.waiting.Load())
	cutRequests(errDrainTimeout)
	// Handlers of cut requests have a second to write their error.
	goodbye, cancelGoodbye := context.WithTimeout(ctx, time.Second)
	defer cancelGoodbye()
	if server.Shutdown(goodbye) != nil {
		_ = server.Close()
	}
}

// openModel loads a model with the engine.
func (s *Server) openModel(spec modelSpec) (Session, error) {
	began := time.Now()
	session, err := s.cfg.Engine.Open(spec.file, s.cfg.Threads)
	s.metrics.observeLoad(began)
	if err != nil {
		// The message of ONNX Runtime has the path, and clients must not see paths of this host.
		file := filepath.Base(spec.file)
		message := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "Error loading temporary session: "), spec.file, file)
		return nil, fmt.Errorf("ONNX Runtime cannot load its file %s: %s", file, message)
	}
	s.log.Info("loaded", "model", spec.name, "version", spec.version, "memory_mib", spec.mib, "took", time.Since(began))
	return session, nil
}

// loadNamed loads a model of the repository.
func (s *Server) loadNamed(ctx context.Context, name string) *callError {
	spec, err := readModel(s.cfg.ModelRepository, name)
	if err == nil {
		err = s.models.loadModel(ctx, spec)
	}
	s.metrics.countLoad(err)
	if err != nil {
		s.log.Warn("cannot load a model", "model", name, "error", err)
		return badRequest("failed to load '%s': %v", name, err)
	}
	return nil
}

// unloadNamed unloads a model.
func (s *Server) unloadNamed(ctx context.Context, name string) *callError {
	err := s.models.unloadModel(ctx, name)
	s.metrics.countUnload(err)
	switch {
	case errors.Is(err, errNotLoaded):
		return &callError{status: http.StatusNotFound, message: fmt.Sprintf("failed to unload '%s': %v", name, err)}
	case err != nil:
		return &callError{status: http.StatusServiceUnavailable, message: fmt.Sprintf("failed to unload '%s': %v", name, err)}
	}
	s.log.Info("unloaded", "model", name)
	return nil
}

// indexEntry is a model in the answer to the repository index.
type indexEntry struct {
	Name    string     `json:"name"`
	Version string     `json:"version,omitempty"`
	State   modelState `json:"state"`
	Reason  string     `json:"reason"`
}

// listIndex lists the models of the repository, and all models that were loaded or failed to load.
func (s *Server) listIndex(onlyReady bool) ([]indexEntry, *callError) {
	folders, err := listRepository(s.cfg.ModelRepository)
	if err != nil {
		return nil, &callError{status: http.StatusInternalServerError, message: err.Error()}
	}
	entries := []indexEntry{}
	known := map[string]bool{}
	for _, m := range s.models.listModels() {
		known[m.name] = true
		if !onlyReady || m.state == modelReady {
			entries = append(entries, indexEntry{Name: m.name, Version: m.version, State: m.state, Reason: m.reason})
		}
	}
	for _, name := range folders {
		if !known[name] && !onlyReady {
			entries = append(entries, indexEntry{Name: name, State: modelUnavailable})
		}
	}
	return entries, nil
}
