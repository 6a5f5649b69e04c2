package process

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/windlass-run/windlass/pkg/healthcheck"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// health is a health check with its defaults filled in.
type health struct {
	Path      string        `json:"path"`
	Port      string        `json:"port,omitempty"`
	Method    string        `json:"method"`
	Codes     []string      `json:"codes,omitempty"` // codes that pass; none: the default
	Interval  time.Duration `json:"interval"`
	Timeout   time.Duration `json:"timeout"`
	Unhealthy int           `json:"unhealthy"`
	Healthy   int           `json:"healthy"`
	Budget    time.Duration `json:"budget"`
}

// firstInterval is the time until the first check of an instance that is not ready. After that, the
// interval grows by half each time, up to the configured interval. So a process that starts in a
// second is ready in a second, and a process that loads for minutes is not checked too often.
const firstInterval = 100 * time.Millisecond

func healthOf(h *windlassv1.HealthCheck) health {
	out := health{
		Path: healthcheck.DefaultPath, Port: h.GetPort(), Method: healthcheck.DefaultMethod,
		Interval: 10 * time.Second, Timeout: healthcheck.DefaultTimeout,
		Unhealthy: 3, Healthy: 2, Budget: 30 * time.Minute, Codes: h.GetExpectedCodes(),
	}
	if h.GetPath() != "" {
		out.Path = h.GetPath()
	}
	if h.GetMethod() != "" {
		out.Method = h.GetMethod()
	}
	if d := h.GetInterval().AsDuration(); d > 0 {
		out.Interval = d
	}
	if d := h.GetTimeout().AsDuration(); d > 0 {
		out.Timeout = d
	}
	if d := h.GetStartupBudget().AsDuration(); d > 0 {
		out.Budget = d
	}
	if n := h.GetUnhealthyThreshold(); n > 0 {
		out.Unhealthy = int(n)
	}
	if n := h.GetHealthyThreshold(); n > 0 {
		out.Healthy = int(n)
	}
	return out
}

// pulse counts the checks of one attempt.
type pulse struct {
	mu     sync.Mutex
	passes int
	fails  int
	last   string
}

func (p *pulse) read() (passes, fails int, last string) {
	if p == nil {
		return 0, 0, ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passes, p.fails, p.last
}

func (p *pulse) lastFailure() string {
	_, _, last := p.read()
	return last
}

// add counts one check. turned is true if the check failed, or if it passed after a failure.
func (p *pulse) add(err error) (turned bool, passes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.passes, p.last = 0, err.Error()
		p.fails++
		return true, 0
	}
	turned = p.fails > 0
	p.fails = 0
	p.passes++
	return turned, p.passes
}

// prober checks instances over HTTP on this host.
type prober struct {
	transport *http.Transport
	jitter    func() float64
	result    func(pass bool)
}

func newProber(jitter func() float64, result func(pass bool)) *prober {
	return &prober{
		// Each check opens a new connection, because it must find out whether the instance accepts
		// connections.
		transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext},
		jitter:    jitter,
		result:    result,
	}
}

// watch checks one attempt until ctx ends. ready means that the instance was ready before. It is
// then checked at its configured interval from the start. wake is called when the counts may change
// a decision.
func (p *prober) watch(ctx context.Context, h health, port int, ready bool, pl *pulse, wake func()) {
	pause := firstInterval
	if ready {
		pause = h.Interval
	}
	timer := time.NewTimer(p.randomPart(min(pause, h.Interval)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := p.probeHealth(ctx, h, port)
		if ctx.Err() != nil {
			return
		}
		p.result(err == nil)
		turned, passes := pl.add(err)
		switch {
		case err == nil && passes < h.Healthy:
			// The instance may be ready, so it is checked again soon.
			pause = firstInterval
		case err == nil:
			ready, pause = true, h.Interval
		case ready:
			pause = h.Interval
		default:
			pause = min(pause+pause/2, h.Interval)
		}
		if turned || passes <= h.Healthy {
			wake()
		}
		timer.Reset(p.randomPart(min(pause, h.Interval)))
	}
}

// randomPart returns d, shortened at random by up to a tenth, so that instances that started at the same
// time are not checked at the same time.
func (p *prober) randomPart(d time.Duration) time.Duration {
	return d - time.Duration(p.jitter()*float64(d)/10)
}

func (p *prober) probeHealth(ctx context.Context, h health, port int) error {
	codes, err := healthcheck.ParseCodes(h.Codes)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	c := healthcheck.Check{Method: h.Method, Path: h.Path, Codes: codes, Timeout: h.Timeout, Agent: "windlass-agent"}
	return c.Do(ctx, p.transport, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}
