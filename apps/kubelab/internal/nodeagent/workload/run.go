package workload

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/kubelab/internal/nodeagent/lifecycle"
)

// Exit codes of runs without a program that gives one.
const (
	exitTerminated = 128 + 15
	exitKilled     = 128 + 9
	exitNotStarted = 128
)

// program is the program of a Run. Its methods may be called at any time, even after its end.
type program interface {
	terminate()
	kill()
	freeze(bool)
	usage(Groups) (u Usage, ok bool)
}

// launcher starts a program, which calls exit once when it has ended. After an error nothing runs, and exit
// is not called.
type launcher func(exit func(lifecycle.Exit)) (program, error)

// Run is one run of one container.
type Run struct {
	// Log is the program's output.
	Log *Log

	exit func(lifecycle.Exit)

	mu     sync.Mutex
	inner  program
	frozen bool
	ended  bool
	stop   chan struct{} // closed if the run must end before its program has started
	early  int32         // the exit code of a run that ends before its program has started
}

// Timing says when the program starts.
type Timing struct {
	// Idle is whether the program never starts, so that the run only waits for its end.
	Idle bool
	// Delay is the time before the program starts.
	Delay time.Duration
}

var errEnded = errors.New("the run was ended before its program started")

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

// startProgram starts the program, unless the run was ended before.
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

// Terminate asks the program to end, or ends the run if no program has started.
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

// Freeze stops all output of the run, or lets it continue.
func (r *Run) Freeze(frozen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen = frozen
	if r.inner != nil {
		r.inner.freeze(frozen)
	}
}

// Handler returns the handler of the model server that listens on port, or nil if none listens. inProcess is
// false if the run is not a model server, which can be reached only through its sockets.
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
