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

	"github.com/prometheus/client_golang/prometheus"
)

// Server is one model server. Create it with New, and call Run once.
type Server struct {
	cfg      Config
	starts   atomic.Int64 // servers that have run in the slot, this one included
	engine   *engine
	log      *slog.Logger
	faults   *faultBoard
	queue    *admission
	cache    *cache
	kv       *kvStore // nil without KV transfer
	rooms    *kvRooms // nil without disaggregation
	part     *part    // nil outside of groups
	ranks    *rankSet // nil on one host
	models   *modelSet
	adapters *modelSet
	metrics  recorder
	registry *prometheus.Registry
	handler  http.Handler
	started  time.Time
	loaded   atomic.Bool
	warm     atomic.Bool
	draining atomic.Bool
	// whenLoaded is closed when loaded becomes true.
	whenLoaded chan struct{}
	// crashes receives the error of a crash during a load.
	crashes chan *ExitError
	// lifetime ends with Run. Loads of models and adapters end with it, and not with their requests.
	lifetime    context.Context
	endLifetime context.CancelFunc

	idMu sync.Mutex
	ids  *rand.Rand
}

// New checks cfg and returns a server. It binds and starts nothing.
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
		engine:  engineNamed(cfg.Engine.Name),
		log:     cfg.Logger,
		started: now,
		// One seed has two streams, so that the number of drawn IDs does not change which requests fail.
		faults: newFaultBoard(cfg.Faults, rand.New(rand.NewPCG(seed, 1)), now),
		ids:    rand.New(rand.NewPCG(seed, 2)),
		queue:  &admission{slots: cfg.Concurrency, queue: cfg.Queue},
		cache:  &cache{size: cfg.KVCacheTokens},

		whenLoaded: make(chan struct{}),
		crashes:    make(chan *ExitError, 1),
	}
	s.lifetime, s.endLifetime = context.WithCancel(context.Background())
	budget := &memoryBudget{limit: cfg.ModelMemoryMiB}
	s.models, s.adapters = newModelSet(budget, 0), newModelSet(budget, cfg.AdapterSlots)
	s.metrics, s.registry = s.engine.metrics(measured{cfg: &s.cfg, queue: s.queue, cache: s.cache})
	if cfg.Engine.KVTransfer.Enabled {
		s.kv = newKVStore(&s.cfg, s.newID(), s.losesTransfers)
	}
	if r := cfg.Engine.Role; r == sglangPrefill || r == sglangDecode {
		s.rooms = newKVRooms(&s.cfg, s.losesTransfers)
	}
	s.part, s.ranks = newPart(&cfg), newRankSet(&cfg)
	s.handler = s.newHandler()
	return s, nil
}

// Handler returns the handler of all endpoints. Without Run no model loads, so the handler answers like a loading
// server.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves until ctx ends, and then drains and returns nil. It returns an *ExitError after an injected
// crash, and another error if it cannot serve.
func (s *Server) Run(ctx context.Context) error {
	defer s.endLifetime()
	faults, _, _ := s.faults.currentFaults()
	if faults.CrashAtStart {
		return &ExitError{Code: faults.ExitCode, Reason: "crashed at start"}
	}
	starts, err := countStart(s.cfg.SlotDir)
	if err != nil {
		return err
	}
	s.starts.Store(int64(starts))
	listener, err := s.listenAtStart(ctx)
	if err != nil {
		return err
	}

	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer stopBackground()
	crashed := make(chan error, 2)
	running.Go(func() { s.loadModel(background) })
	running.Go(func() { crashed <- s.runFaults(background) })
	together, leave := context.WithCancel(background)
	defer leave()
	if s.ranks != nil {
		running.Go(func() {
			if err := s.ranks.run(together); err != nil {
				crashed <- err
			}
		})
	}
	stop := make(chan struct{})
	running.Go(func() {
		if s.awaitStop(ctx, background) {
			close(stop)
		}
	})

	if listener == nil {
		s.log.Info("loading", "model", s.cfg.Model, "engine", s.engine.name)
		select {
		case <-s.whenLoaded:
		case err := <-crashed:
			return err
		case <-stop:
			return nil
		}
		if listener, err = s.listen(ctx); err != nil {
			return err
		}
	}

	if s.kv != nil {
		channel, err := s.kv.listenSideChannel(ctx)
		if err != nil {
			return errors.Join(err, ignoreClosed(listener.Close()))
		}
		running.Go(func() { s.kv.serveBlocks(channel) })
		defer channel.Close()
		s.log.Info("serving KV transfers", "engine", s.kv.engineID, "address", channel.Addr().String())
	}

	if s.rooms != nil && s.cfg.Engine.Role == sglangPrefill {
		meeting, err := s.rooms.listenBootstrap(ctx)
		if err != nil {
			return errors.Join(err, ignoreClosed(listener.Close()))
		}
		running.Go(func() { s.rooms.serveDecoders(background, meeting) })
		defer meeting.Close()
		s.log.Info("waiting for decode servers", "address", meeting.Addr().String())
	}

	// Requests have a separate context, because the end of ctx starts the drain and must not cut them.
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
	go func() {
		if s.cfg.Engine.CertFile != "" {
			served <- server.ServeTLS(listener, s.cfg.Engine.CertFile, s.cfg.Engine.KeyFile)
			return
		}
		served <- server.Serve(listener)
	}()

	s.log.Info("listening", "address", listener.Addr().String(), "model", s.cfg.Model, "version", s.cfg.VersionLabel)
	select {
	case err := <-served:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case err := <-crashed:
		return errors.Join(err, ignoreClosed(server.Close()))
	case <-stop:
	}
	if s.cfg.Rank > 0 {
		leave() // without this rank, the leader cannot finish its requests, and exits
	}
	return s.drain(context.WithoutCancel(ctx), server, crashed, cutRequests)
}

// listenAtStart listens. For an engine that listens only when it is loaded, it checks that the port is free,
// and returns nil.
func (s *Server) listenAtStart(ctx context.Context) (net.Listener, error) {
	if !s.engine.listensWhenLoaded {
		return s.listen(ctx)
	}
	if s.cfg.Listener != nil || s.cfg.Listen == nil && s.cfg.Port == 0 {
		return nil, nil
	}
	probe, err := s.listen(ctx)
	if err != nil {
		return nil, err
	}
	return nil, probe.Close()
}

func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	switch {
	case s.cfg.Listener != nil:
		return s.cfg.Listener, nil
	case s.cfg.Listen != nil:
		return s.cfg.Listen(ctx)
	}
	addr := net.JoinHostPort(s.cfg.Host, strconv.Itoa(s.cfg.Port))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s (choose another --host or --port): %w", addr, err)
	}
	return listener, nil
}

// drain waits up to DrainTimeout for requests in flight, and cuts the rest. Its ctx must not be the context whose end
// started the drain.
func (s *Server) drain(ctx context.Context, server *http.Server, crashed <-chan error, cutRequests context.CancelCauseFunc) error {
	s.draining.Store(true)
	started := time.Now()
	inFlight, queued := s.queue.countRequests()
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
	if s.engine.acceptsUntilIdle {
		if err := s.awaitIdle(deadline, crashed); err != nil {
			return errors.Join(err, ignoreClosed(server.Close()))
		}
	}
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
	running, waiting := s.queue.countRequests()
	s.log.Warn("drain timeout passed, cutting requests", "running", running, "waiting", waiting)
	if s.engine.abrupt {
		// The connections are closed first, so that no request gets an error answer.
		err := ignoreClosed(server.Close())
		cutRequests(errDrainTimeout)
		return err
	}
	cutRequests(errDrainTimeout)
	// Handlers of cut requests have a second to write their error.
	goodbye, cancelGoodbye := context.WithTimeout(ctx, time.Second)
	defer cancelGoodbye()
	if server.Shutdown(goodbye) != nil {
		return ignoreClosed(server.Close())
	}
	return nil
}

// awaitIdle waits until no request runs or waits, or ctx ends. It returns an error only for a crash.
func (s *Server) awaitIdle(ctx context.Context, crashed <-chan error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if running, waiting := s.queue.countRequests(); running+waiting == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		case err := <-crashed:
			return err
		}
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// awaitStop returns true when ctx has ended and the fault IgnoreSIGTERM is not set. It returns false when
// ended is done first.
func (s *Server) awaitStop(ctx, ended context.Context) bool {
	select {
	case <-ctx.Done():
	case <-ended.Done():
		return false
	}
	for {
		faults, _, changed := s.faults.currentFaults()
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

// loadModel makes the server ready once all ranks have met, LoadTime has passed and the fault NeverReady has ended. An
// engine that warms up is ready before it is healthy.
func (s *Server) loadModel(ctx context.Context) {
	if !s.ranks.awaitRanks(ctx) || sleepUntil(ctx, time.Now().Add(s.cfg.LoadTime)) != nil || !s.engine.warmsUp && !s.awaitReadiness(ctx) {
		return
	}
	s.loaded.Store(true)
	close(s.whenLoaded)
	s.log.Info("model loaded", "model", s.cfg.Model)
	if s.engine.warmsUp && (sleepUntil(ctx, time.Now().Add(s.cfg.WarmUpTime)) != nil || !s.awaitReadiness(ctx)) {
		return
	}
	s.warm.Store(true)
}

// awaitReadiness waits for the end of the fault NeverReady, and returns false when
// ctx ends first.
func (s *Server) awaitReadiness(ctx context.Context) bool {
	for {
		faults, _, changed := s.faults.currentFaults()
		if !faults.NeverReady {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// isReady reports whether the server serves requests. A draining server is ready, because it answers the
// requests that it accepted.
func (s *Server) isReady() bool {
	faults, _, _ := s.faults.currentFaults()
	return s.loaded.Load() && !faults.NeverReady
}

func (s *Server) newID() string {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	return fmt.Sprintf("%016x%016x", s.ids.Uint64(), s.ids.Uint64())
}
