package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"
)

// DefaultCheckTimeout is below the ten seconds between probes of Kubernetes and most load balancers, and
// above the time that a healthy database needs.
const DefaultCheckTimeout = 2 * time.Second

// Health answers liveness and readiness probes. A process that is not live should be restarted. A process that is
// not ready should get no work. Liveness checks no dependencies, because a restart does not repair a database.
//
// The zero value has no checks and is ready. It is safe for concurrent use.
type Health struct {
	// Timeout limits each check. It must be set before use. Default: DefaultCheckTimeout.
	Timeout time.Duration

	mu     sync.Mutex
	checks map[string]*check
	role   string
}

// check is a check that runs only once at a time. So a check that hangs and ignores its context costs only one
// goroutine.
type check struct {
	run  func(context.Context) error
	slot chan struct{}
}

// Add registers a readiness check under a name, and replaces an earlier check with that name. Every client of /readyz
// sees the check's error, so it must contain no secret.
func (h *Health) Add(name string, run func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.checks == nil {
		h.checks = map[string]*check{}
	}
	h.checks[name] = &check{run: run, slot: make(chan struct{}, 1)}
}

// SetRole sets the program's current role if several programs share a task: "active", "stand-by". The role is in
// every report, and does not change the status.
func (h *Health) SetRole(role string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.role = role
}

// Result is the result of one check.
type Result struct {
	OK bool `json:"ok"`
	// Error is empty when OK.
	Error string `json:"error,omitempty"`
	// Millis is the duration of the check in milliseconds.
	Millis int64 `json:"ms"`
}

// Report has the results of all checks.
type Report struct {
	// Status is "ok" or "failing".
	Status string `json:"status"`
	// Role is the role of SetRole, if any.
	Role   string            `json:"role,omitempty"`
	Checks map[string]Result `json:"checks,omitempty"`
}

// Check runs all checks in parallel, and returns within Timeout.
func (h *Health) Check(ctx context.Context) Report {
	h.mu.Lock()
	checks, role := maps.Clone(h.checks), h.role
	h.mu.Unlock()
	timeout := h.Timeout
	if timeout <= 0 {
		timeout = DefaultCheckTimeout
	}

	var wg sync.WaitGroup
	var mu sync.Mutex
	report := Report{Status: "ok", Role: role, Checks: make(map[string]Result, len(checks))}
	for name, c := range checks {
		wg.Go(func() {
			start := time.Now()
			err := c.checkWithin(ctx, timeout)
			result := Result{OK: err == nil, Millis: time.Since(start).Milliseconds()}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				result.Error = err.Error()
				report.Status = "failing"
			}
			report.Checks[name] = result
		})
	}
	wg.Wait()
	return report
}

func (c *check) checkWithin(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()

	select {
	case c.slot <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("an earlier check is still waiting: %w", context.Cause(ctx))
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-c.slot }()
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("the check panicked: %v", p)
			}
		}()
		done <- c.run(ctx)
	}()
	select {
	case err := <-done:
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// LiveHandler answers 200 whenever the process can answer.
func (h *Health) LiveHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		role := h.role
		h.mu.Unlock()
		writeReport(w, Report{Status: "ok", Role: role})
	})
}

// ReadyHandler runs the checks and answers with a Report in JSON: 200 if all passed, 503 if one failed.
func (h *Health) ReadyHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeReport(w, h.Check(r.Context()))
	})
}

func writeReport(w http.ResponseWriter, report Report) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if report.Status != "ok" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// An error means that the prober's connection is broken, so it cannot be reported.
	_ = json.NewEncoder(w).Encode(report)
}
