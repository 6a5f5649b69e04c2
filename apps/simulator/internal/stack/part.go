package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

// server is a running process of a part.
type server interface {
	PID() int
	Done() <-chan struct{}
	Stop(ctx context.Context) error
}

// Part is a process that can be killed, and started again on its data.
type Part struct {
	name, log string
	// ready is a URL that answers 200 when the part can do its work. Empty: it can when start returns.
	ready string
	start func(ctx context.Context) (server, error)

	mu  sync.Mutex
	now server
}

// program is a control plane's process.
type program struct{ *proc.Process }

func (p program) Stop(ctx context.Context) error { return p.Process.Stop(ctx, planeGrace) }

// PID returns the pid of the running process, or 0.
func (p *Part) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return 0
	}
	select {
	case <-p.now.Done():
		return 0
	default:
		return p.now.PID()
	}
}

func (p *Part) stop(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return nil
	}
	return p.now.Stop(ctx)
}

// Launch starts a part that does not run.
func (s *Stack) Launch(ctx context.Context, name string) error {
	p := s.parts[name]
	p.mu.Lock()
	defer p.mu.Unlock()
	running, err := p.start(ctx)
	if running != nil {
		p.now = running
	}
	if err != nil {
		return fmt.Errorf("start %s: %w\n%s", name, err, Tail(p.log, 20))
	}
	return nil
}

// Kill ends only this part, as kill -9 does, and returns once it has ended. It does nothing if the part does
// not run.
func (s *Stack) Kill(name string) error {
	if pid := s.parts[name].PID(); pid != 0 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill %s: %w", name, err)
		}
	}
	p := s.parts[name]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return nil
	}
	select {
	case <-p.now.Done():
		return nil
	case <-time.After(stopDeadline):
		return fmt.Errorf("%s still runs after it was killed", name)
	}
}

// Freeze stops a part, with all its connections open, until Thaw.
func (s *Stack) Freeze(name string) error { return s.signalPart(name, syscall.SIGSTOP) }

// Thaw continues a frozen part. Other parts are left alone.
func (s *Stack) Thaw(name string) error { return s.signalPart(name, syscall.SIGCONT) }

func (s *Stack) signalPart(name string, sig syscall.Signal) error {
	pid := s.parts[name].PID()
	if pid == 0 {
		return nil
	}
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%s %s: %w", sig, name, err)
	}
	return nil
}

// Terminate stops a part as an operator does, and waits until it has ended.
func (s *Stack) Terminate(ctx context.Context, name string) error {
	if err := s.parts[name].stop(ctx); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	return nil
}

// Runs reports whether a part's process lives.
func (s *Stack) Runs(name string) bool { return s.parts[name].PID() != 0 }

// LogEnd returns the last lines of a part's log.
func (s *Stack) LogEnd(name string) string { return Tail(s.parts[name].log, 20) }

// WaitReady waits until a part that was launched can do its work.
func (s *Stack) WaitReady(ctx context.Context, name string) error {
	p := s.parts[name]
	if p.ready == "" {
		return nil
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if isReady(ctx, client, p.ready) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not become ready: %w\n%s", name, context.Cause(ctx), Tail(p.log, 20))
		case <-tick.C:
		}
		if p.PID() == 0 {
			return fmt.Errorf("%s ended before it was ready\n%s", name, Tail(p.log, 20))
		}
	}
}

func isReady(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Log returns the last lines that a part wrote.
func (s *Stack) Log(name string, lines int) string { return Tail(s.parts[name].log, lines) }

// Tail returns the last lines of a file.
func Tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.SplitAfter(string(b), "\n")
	return strings.Join(all[max(0, len(all)-lines-1):], "")
}
