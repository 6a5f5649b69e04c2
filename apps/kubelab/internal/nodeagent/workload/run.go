package workload

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
)

// Exit codes of runs whose program is not there to give its own.
const (
	exitTerminated = 128 + 15
	exitKilled     = 128 + 9
	exitNotStarted = 128
)

// program is what a Run runs. Each method may be called at any time, also after
// its end.
type program interface {
	terminate()
	kill()
	freeze(bool)
}

// launcher starts a program, which calls exit once when it has ended. An error
// means that nothing runs and exit is not called.
type launcher func(exit func(lifecycle.Exit)) (program, error)

// Run is one run of one container.
type Run struct {
	// Log is what the program wrote.
	Log *Log

	exit func(lifecycle.Exit)

	mu     sync.Mutex
	inner  program
	frozen bool
	ended  bool
	stop   chan struct{} // closed when the run is to end before its program started
	early  int32         // the exit code of that
}

// Timing says when the program is to run.
type Timing struct {
	// Idle: never; there is only something that can be ended.
	Idle bool
	// Delay passes first.
	Delay time.Duration
}

var errEnded = errors.New("told to end before it began")

// startRun returns a run of the program that launch starts. A goroutine of the run calls exit once,
// when the run has ended. exit is not called when startRun fails.
func startRun(log *Log, timing Timing, launch launcher, exit func(lifecycle.Exit)) (*Run, error) {
	r := &Run{Log: log, exit: exit, stop: make(chan struct{})}
	if !timing.Idle && timing.Delay <= 0 {
		return r, r.startProgram(launch)
	}
	go r.startLater(timing, launch)
	return r, nil
}

// startProgram starts the program, unless the run was told to end before.
func (r *Run) startProgram(launch launcher) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return errEnded
	}
	inner, err := launch(func(e lifecycle.Exit) {
		e.LogTail = r.Log.Tail()
		r.Log.close()
		r.exit(e)
	})
	if err != nil {
		return err
	}
	r.inner = inner
	if r.frozen {
		inner.freeze(true)
	}
	return nil
}

func (r *Run) startLater(timing Timing, launch launcher) {
	var begin <-chan time.Time
	if !timing.Idle {
		timer := time.NewTimer(timing.Delay)
		defer timer.Stop()
		begin = timer.C
	}
	select {
	case <-begin:
		err := r.startProgram(launch)
		if err == nil {
			return
		}
		if !errors.Is(err, errEnded) {
			_, _ = fmt.Fprintln(r.Log, err)
			r.reportExit(exitNotStarted, lifecycle.ReasonStartError)
			return
		}
	case <-r.stop:
	}
	r.reportExit(r.early, "")
}

func (r *Run) reportExit(code int32, reason string) {
	e := lifecycle.Exit{Code: code, Reason: reason, LogTail: r.Log.Tail()}
	if code == exitKilled {
		e.Signal = 9
	}
	r.Log.close()
	r.exit(e)
}

// Terminate asks the run to end.
func (r *Run) Terminate() { r.endProgram(exitTerminated, program.terminate) }

// Kill ends the run.
func (r *Run) Kill() { r.endProgram(exitKilled, program.kill) }

func (r *Run) endProgram(code int32, tell func(program)) {
	r.mu.Lock()
	inner := r.inner
	if inner == nil && !r.ended {
		r.ended, r.early = true, code
		close(r.stop)
	}
	r.mu.Unlock()
	if inner != nil {
		tell(inner)
	}
}

// Freeze stops the run from saying anything, or lets it go on.
func (r *Run) Freeze(frozen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen = frozen
	if r.inner != nil {
		r.inner.freeze(frozen)
	}
}

// Handler answers in the place of the server that listens on port of the pod's
// address. inProcess is false when the run is no model server, so that only its
// sockets can tell; then, and where nothing listens on port, the handler is nil.
func (r *Run) Handler(port int) (handler http.Handler, inProcess bool) {
	r.mu.Lock()
	inner := r.inner
	r.mu.Unlock()
	switch p := inner.(type) {
	case nil:
		return nil, true // nothing runs, so nothing listens
	case *model:
		return p.handlerAt(port), true
	default:
		return nil, false
	}
}
