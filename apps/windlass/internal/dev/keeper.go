package dev

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/windlass-run/windlass/pkg/backoff"
)

// server is a started process.
type server interface {
	PID() int
	Done() <-chan struct{}
	Wait() error
	Stop(ctx context.Context) error
}

// child is a process to keep running.
type child struct {
	// name is the name in the state file, title the name for people.
	name, title string
	detail      string
	log         string
	urls        []string
	// kubeconfig is the path of a cluster's kubeconfig.
	kubeconfig string
	start      func(ctx context.Context) (server, error)
	// ready returns nil once the process serves, else an error with the reason why it does not yet. ready is nil if
	// start itself waits until the process serves.
	ready func(ctx context.Context) error
	// lastWords returns the last output of an ended process.
	lastWords func() string
}

const (
	// readyDeadline bounds the first start. An agent must join and recover, and the control plane must migrate and
	// register, which takes seconds.
	readyDeadline = 90 * time.Second
	readyPoll     = 50 * time.Millisecond
	// settled is the run time after which the restart delay begins at its minimum again.
	settled = 30 * time.Second
)

// restartDelay is short at first, so that a killed child is back before its callers' deadlines. It grows, so
// that a child that cannot start uses little CPU.
var restartDelay = backoff.Policy{Min: 200 * time.Millisecond, Max: 10 * time.Second}

// keeper starts a child, and starts it again whenever it ends.
type keeper struct {
	child
	state *stateFile
	say   func(string)
	rnd   func() float64

	mu      sync.Mutex
	current server
}

// startFirst starts the child and waits until it is ready.
func (k *keeper) startFirst(ctx context.Context) error {
	srv, err := k.startOnce(ctx)
	if err != nil {
		return err
	}
	deadline, cancel := context.WithTimeoutCause(ctx, readyDeadline, fmt.Errorf("not ready after %s", readyDeadline))
	defer cancel()
	if err := k.untilReady(deadline, srv); err != nil {
		return fmt.Errorf("%s: %w (log: %s)", k.title, err, k.log)
	}
	return nil
}

func (k *keeper) startOnce(ctx context.Context) (server, error) {
	srv, err := k.start(ctx)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	k.current = srv
	k.mu.Unlock()
	k.state.updateProcess(k.name, func(p *ProcessState) { p.PID = srv.PID() })
	return srv, nil
}

// untilReady returns nil once the child is ready. It returns an error if the child or ctx ends first. If ctx ends, the
// error says why the child is not ready.
func (k *keeper) untilReady(ctx context.Context, srv server) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		var err error
		if k.ready != nil {
			err = k.ready(ctx)
		}
		if err == nil {
			k.state.updateProcess(k.name, func(p *ProcessState) { p.State = "ready" })
			return nil
		}
		select {
		case <-srv.Done():
			return fmt.Errorf("ended (%s)%s", howEnded(srv), k.lastWordsOf(srv))
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// keepRunning starts the child again whenever it ends, until ctx ends.
func (k *keeper) keepRunning(ctx context.Context) {
	k.mu.Lock()
	srv := k.current
	k.mu.Unlock()
	said := ""
	for attempt := 0; ; attempt++ {
		since := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-srv.Done():
		}
		if ctx.Err() != nil {
			return
		}
		if time.Since(since) > settled {
			attempt, said = 0, ""
		}
		how := howEnded(srv)
		k.state.updateProcess(k.name, func(p *ProcessState) { p.State, p.PID, p.LastExit = "restarting", 0, how })
		// The same reason is reported only once.
		if line := fmt.Sprintf("%s ended (%s)%s; starting it again", k.title, how, k.lastWordsOf(srv)); line != said {
			k.say(line)
			said = line
		}

		var ok bool
		if srv, ok = k.startAgain(ctx, &attempt); !ok {
			return
		}
		k.state.updateProcess(k.name, func(p *ProcessState) { p.State = "starting"; p.Restarts++ })
		if k.untilReady(ctx, srv) == nil {
			k.say(fmt.Sprintf("%s is back (pid %d)", k.title, srv.PID()))
			said = ""
		}
	}
}

// startAgain tries to start the child until it has started or ctx ends.
func (k *keeper) startAgain(ctx context.Context, attempt *int) (server, bool) {
	said := ""
	for ; ; *attempt++ {
		if backoff.Sleep(ctx, restartDelay.Delay(*attempt, k.rnd)) != nil {
			return nil, false
		}
		srv, err := k.startOnce(ctx)
		if err == nil {
			return srv, true
		}
		if ctx.Err() != nil {
			return nil, false
		}
		if err.Error() != said {
			said = err.Error()
			k.say(fmt.Sprintf("%s does not start; trying again: %s", k.title, said))
		}
	}
}

// stop stops the child. keepRunning must have returned.
func (k *keeper) stop(ctx context.Context) error {
	k.mu.Lock()
	srv := k.current
	k.mu.Unlock()
	if srv == nil {
		return nil
	}
	err := srv.Stop(ctx)
	if err == nil {
		k.state.updateProcess(k.name, func(p *ProcessState) { p.State, p.PID = "stopped", 0 })
	}
	return err
}

// lastWordsOf returns the last line of an ended child's log. It is empty after a signal, because then the
// last line does not explain the end.
func (k *keeper) lastWordsOf(srv server) string {
	exit, ok := errors.AsType[*exec.ExitError](srv.Wait())
	if k.lastWords == nil || ok && exit.ExitCode() < 0 {
		return ""
	}
	if w := k.lastWords(); w != "" {
		return ": " + w
	}
	return ""
}

func howEnded(srv server) string {
	if err := srv.Wait(); err != nil {
		return err.Error()
	}
	return "exit status 0"
}

var errNotReady = errors.New("not ready")
