package process

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// health is a health check with its defaults filled in.
type health struct {
	Path      string        `json:"path"`
	Port      string        `json:"port,omitempty"`
	Method    string        `json:"method"`
	Interval  time.Duration `json:"interval"`
	Timeout   time.Duration `json:"timeout"`
	Unhealthy int           `json:"unhealthy"`
	Healthy   int           `json:"healthy"`
	Budget    time.Duration `json:"budget"`
}

// firstInterval is how soon an instance that is not ready is asked first; from
// there the interval grows by half, up to the one that was set. A process that
// starts in a second is thus ready in a second, and one that loads for minutes is
// not pestered.
const firstInterval = 100 * time.Millisecond

func healthOf(h *windlassv1.HealthCheck) health {
	out := health{
		Path: "/health", Port: h.GetPort(), Method: http.MethodGet,
		Interval: 10 * time.Second, Timeout: 5 * time.Second,
		Unhealthy: 3, Healthy: 2, Budget: 30 * time.Minute,
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

// add counts one check, and tells whether it may decide anything: a pass of
// one that passes, and serves, changes nothing.
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
	client *http.Client
	jitter func() float64
	result func(pass bool)
}

func newProber(jitter func() float64, result func(pass bool)) *prober {
	return &prober{
		client: &http.Client{
			// A connection each: what is asked is whether it accepts new ones.
			Transport:     &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		jitter: jitter,
		result: result,
	}
}

// watch checks one attempt until ctx ends. ready says that it was ready already:
// then it is asked at its own interval from the start. wake is called when the
// counts may decide something.
func (p *prober) watch(ctx context.Context, h health, port int, ready bool, pl *pulse, wake func()) {
	pause := firstInterval
	if ready {
		pause = h.Interval
	}
	timer := time.NewTimer(p.spread(min(pause, h.Interval)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := p.check(ctx, h, port)
		if ctx.Err() != nil {
			return
		}
		p.result(err == nil)
		turned, passes := pl.add(err)
		switch {
		case err == nil && passes < h.Healthy:
			// Confirm at once what may be readiness.
			pause = firstInterval
		case err == nil:
			ready, pause = true, h.Interval
		case ready:
			pause = h.Interval
		default:
			pause += pause / 2
		}
		if turned || passes <= h.Healthy {
			wake()
		}
		timer.Reset(p.spread(min(pause, h.Interval)))
	}
}

// spread keeps instances that started together from being checked together.
func (p *prober) spread(d time.Duration) time.Duration {
	return d - time.Duration(p.jitter()*float64(d)/10)
}

func (p *prober) check(ctx context.Context, h health, port int) error {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	url := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + h.Path
	req, err := http.NewRequestWithContext(ctx, h.Method, url, nil)
	if err != nil {
		return fmt.Errorf("health check %s: %w", h.Path, err)
	}
	req.Header.Set("User-Agent", "windlass-agent")
	res, err := p.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s %s: no answer within %s", h.Method, h.Path, h.Timeout)
		}
		return fmt.Errorf("port %d: %w", port, cause(err))
	}
	defer func() { _ = res.Body.Close() }()
	// An endless body is an answer too slow, not one to read.
	_, _ = io.CopyN(io.Discard, res.Body, 4096)
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("%s %s answered %s", h.Method, h.Path, res.Status)
	}
	return nil
}
