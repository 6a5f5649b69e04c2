package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
	"github.com/windlass-run/windlass/apps/modelserver"
)

// killPatience is how long a killed server may take to return. Its listeners and connections are closed, but
// a handler may still run.
const killPatience = time.Second

// Model is a container that runs as a model server.
type Model struct {
	Log    *Log
	Timing Timing
	// Image is the container's image if the container has no command, else empty. The entrypoint of an
	// engine's image is put before Args.
	Image string
	// Args are the container's command and arguments. Args and variables of Env that the model server does
	// not know are ignored. The command line of an engine is read with that engine's flags.
	Args []string
	Env  map[string]string
	// Address is the pod's address, and Ports are the container's ports. Without ports the server does not
	// listen, unless Args or Env name one.
	Address netip.Addr
	Ports   []int
	// Done is whether the run ends at once, with success.
	Done bool
}

// StartModel starts a server. An error of the server, such as a bad flag or a taken port, ends the run and is
// in its log.
func StartModel(m Model, exit func(lifecycle.Exit)) (*Run, error) {
	return startRun(m.Log, m.Timing, m.launchServer, exit)
}

type model struct {
	server *modelserver.Server // nil if it does not listen
	ports  []int
	cancel context.CancelFunc

	exit func(lifecycle.Exit)

	mu       sync.Mutex
	listener *listener // nil until it listens
	frozen   bool
	killed   bool
	told     bool
}

func (m Model) launchServer(exit func(lifecycle.Exit)) (program, error) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &model{cancel: cancel, exit: exit}
	if m.Done {
		cancel()
		go p.reportExit(lifecycle.Exit{})
		return p, nil
	}
	err := p.prepareServer(ctx, m)
	go p.runServer(ctx, m.Log, err)
	return p, nil
}

func (p *model) prepareServer(ctx context.Context, m Model) error {
	args := append(modelserver.ImageEntrypoint(m.Image), m.Args...)
	cfg, portGiven, err := modelserver.ParseArgs(args, func(name string) (string, bool) {
		value, ok := m.Env[name]
		return value, ok
	})
	if err != nil {
		return err
	}
	p.ports = slices.Clone(m.Ports)
	if portGiven {
		p.ports = []int{cfg.Port}
	}
	if len(p.ports) == 0 {
		return nil
	}
	cfg.Listen = func(ctx context.Context) (net.Listener, error) { return p.openPorts(ctx, m.Address) }
	if !cfg.ListensWhenLoaded() {
		if cfg.Listener, err = p.openPorts(ctx, m.Address); err != nil {
			return err
		}
	}
	cfg.Logger = slog.New(slog.NewTextHandler(m.Log, nil))
	if p.server, err = modelserver.New(cfg); err != nil {
		p.closeListener()
	}
	return err
}

// openPorts opens all ports.
func (p *model) openPorts(ctx context.Context, address netip.Addr) (net.Listener, error) {
	var inner []net.Listener
	discard := func() {
		for _, one := range inner {
			_ = one.Close()
		}
	}
	for _, port := range p.ports {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(address.String(), strconv.Itoa(port)))
		if err != nil {
			discard()
			return nil, fmt.Errorf("cannot listen: %w", err)
		}
		inner = append(inner, l)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed {
		discard()
		return nil, net.ErrClosed
	}
	p.listener = newListener(inner)
	p.listener.blocker.freeze(p.frozen)
	return p.listener, nil
}

func (p *model) runServer(ctx context.Context, log *Log, err error) {
	defer p.cancel()
	switch {
	case err != nil:
	case p.server == nil:
		// A container without ports runs until it is ended.
		<-ctx.Done()
		p.reportExit(lifecycle.Exit{Code: exitTerminated})
		return
	default:
		err = p.server.Run(ctx)
		p.closeListener()
	}
	e := lifecycle.Exit{}
	if crash, ok := errors.AsType[*modelserver.ExitError](err); ok {
		e.Code = int32(crash.Code)
	} else if refused, ok := errors.AsType[*modelserver.CommandLineError](err); ok {
		e.Code = int32(refused.Code)
	} else if err != nil {
		e.Code = 1
	}
	if err != nil {
		_, _ = fmt.Fprintln(log, err)
	}
	p.reportExit(e)
}

// reportExit calls exit once. A killed server is reported as killed, whatever e is.
func (p *model) reportExit(e lifecycle.Exit) {
	p.mu.Lock()
	told := p.told
	p.told = true
	if p.killed {
		e = lifecycle.Exit{Code: exitKilled, Signal: 9}
	}
	p.mu.Unlock()
	if !told {
		p.exit(e)
	}
}

// closeListener closes the server's listeners and connections.
func (p *model) closeListener() {
	p.mu.Lock()
	l := p.listener
	p.mu.Unlock()
	if l != nil {
		l.closeAll()
	}
}

func (p *model) terminate() { p.cancel() }

func (p *model) kill() {
	p.mu.Lock()
	again := p.killed || p.told
	p.killed = true
	p.mu.Unlock()
	if again {
		return
	}
	p.closeListener()
	p.cancel()
	time.AfterFunc(killPatience, func() { p.reportExit(lifecycle.Exit{}) })
}

func (p *model) freeze(frozen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = frozen
	if p.listener != nil {
		p.listener.blocker.freeze(frozen)
	}
}

func (p *model) handlerAt(port int) http.Handler {
	p.mu.Lock()
	l := p.listener
	p.mu.Unlock()
	if l == nil || !l.isOpen() || !slices.Contains(p.ports, port) {
		return nil
	}
	return p.server.Handler()
}
