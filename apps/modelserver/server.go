package modelserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Server is one model server. New makes it, Run runs it, once.
type Server struct {
	cfg      Config
	log      *slog.Logger
	faults   *faultBoard
	queue    *admission
	metrics  *metrics
	handler  http.Handler
	started  time.Time
	loaded   atomic.Bool
	draining atomic.Bool

	idMu sync.Mutex
	ids  *rand.Rand
}

// New checks cfg and builds the server; nothing is bound or started yet.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("modelserver config: %w", err)
	}
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	now := time.Now()
	s := &Server{
		cfg:     cfg,
		log:     cfg.Logger,
		started: now,
		// Two streams of one seed: how many ids were drawn must not change
		// which requests fail.
		faults: newFaultBoard(cfg.Faults, rand.New(rand.NewPCG(seed, 1)), now),
		ids:    rand.New(rand.NewPCG(seed, 2)),
		queue:  &admission{slots: cfg.Concurrency, queue: cfg.Queue},
	}
	s.metrics = newMetrics(cfg.Model, cfg.KVCacheTokens, s.queue)
	s.handler = s.routes()
	return s, nil
}

// Handler serves every endpoint. Without Run nothing loads, so it answers as a
// server that is still loading.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves until ctx ends, then drains and returns nil. It returns an
// *ExitError when an injected fault ends the process, and any other error when
// it cannot serve.
func (s *Server) Run(ctx context.Context) error {
	faults, _, _ := s.faults.get()
	if faults.CrashAtStart {
		return &ExitError{Code: faults.ExitCode, Reason: "crashed at start"}
	}
	listener := s.cfg.Listener
	if listener == nil {
		addr := net.JoinHostPort(s.cfg.Host, strconv.Itoa(s.cfg.Port))
		var err error
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", addr); err != nil {
			return fmt.Errorf("cannot listen on %s (choose another --host or --port): %w", addr, err)
		}
	}

	// Requests live on their own context: the end of ctx starts the drain and
	// must not cut them.
	requests, cutRequests := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cutRequests(nil)
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer stopBackground()
	crashed := make(chan error, 1)
	running.Go(func() { s.load(background) })
	running.Go(func() { crashed <- s.runFaults(background) })
	stop := make(chan struct{})
	running.Go(func() {
		if s.awaitStop(ctx, background) {
			close(stop)
		}
	})

	s.log.Info("listening", "address", listener.Addr().String(), "model", s.cfg.Model, "version", s.cfg.VersionLabel)
	select {
	case err := <-served:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case err := <-crashed:
		return errors.Join(err, ignoreClosed(server.Close()))
	case <-stop:
	}
	return s.drain(context.WithoutCancel(ctx), server, crashed, cutRequests)
}

// drain lets requests in flight finish within DrainTimeout and cuts the rest. Its
// ctx must outlive the one whose end began it.
func (s *Server) drain(ctx context.Context, server *http.Server, crashed <-chan error, cutRequests context.CancelCauseFunc) error {
	s.draining.Store(true)
	started := time.Now()
	inFlight, queued := s.queue.load()
	s.log.Info("draining", "running", inFlight, "waiting", queued, "timeout", s.cfg.DrainTimeout)
	if s.cfg.DrainDelay > 0 {
		delay := time.NewTimer(s.cfg.DrainDelay)
		defer delay.Stop()
		select {
		case <-delay.C:
		case err := <-crashed:
			return errors.Join(err, ignoreClosed(server.Close()))
		}
	}
	deadline, cancel := context.WithTimeout(ctx, s.cfg.DrainTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- server.Shutdown(deadline) }()
	select {
	case err := <-done:
		if err == nil {
			s.log.Info("drained", "took", time.Since(started))
			return nil
		}
	case err := <-crashed:
		return errors.Join(err, ignoreClosed(server.Close()))
	}
	running, waiting := s.queue.load()
	s.log.Warn("drain timeout passed, cutting requests", "running", running, "waiting", waiting)
	cutRequests(errDrainTimeout)
	// Those who are cut get a moment to be told.
	goodbye, cancelGoodbye := context.WithTimeout(ctx, time.Second)
	defer cancelGoodbye()
	if server.Shutdown(goodbye) != nil {
		return ignoreClosed(server.Close())
	}
	return nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// awaitStop returns true when ctx has ended and no fault tells to ignore it,
// false when the server ended for another reason first.
func (s *Server) awaitStop(ctx, ended context.Context) bool {
	select {
	case <-ctx.Done():
	case <-ended.Done():
		return false
	}
	for {
		faults, _, changed := s.faults.get()
		if !faults.IgnoreSIGTERM {
			return true
		}
		s.log.Warn("ignoring the request to stop (injected fault)")
		select {
		case <-changed:
		case <-ended.Done():
			return false
		}
	}
}

// load makes the server ready after LoadTime, or when a fault that kept it from
// that is lifted.
func (s *Server) load(ctx context.Context) {
	if sleepUntil(ctx, time.Now().Add(s.cfg.LoadTime)) != nil {
		return
	}
	for {
		faults, _, changed := s.faults.get()
		if !faults.NeverReady {
			s.loaded.Store(true)
			s.log.Info("model loaded", "model", s.cfg.Model)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// ready reports whether requests are served. Draining is not part of it: a request that was
// accepted is answered.
func (s *Server) ready() bool {
	faults, _, _ := s.faults.get()
	return s.loaded.Load() && !faults.NeverReady
}

func (s *Server) newID() string {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	return fmt.Sprintf("%016x%016x", s.ids.Uint64(), s.ids.Uint64())
}
