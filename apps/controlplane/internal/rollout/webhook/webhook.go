// Package webhook calls webhooks for the verdicts of rollouts' checks. It decides nothing: an answer without a verdict
// becomes a problem, and package plan decides what follows.
//
// The person who deploys chooses the addresses, and the control plane can reach secrets. So:
//
//   - Package callout decides which addresses may be called, and describes errors only by their kind.
//   - Only the verdict, a figure and a line of text of an answer are kept.
//   - The time, size and number of calls are bounded, for a call, for a step and for the process.
//
// A failed call is not repeated before the next interval. If a step dies before it stores a verdict, the call is
// repeated with the same id.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/callout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/pkg/guard"
	"github.com/windlass-run/windlass/pkg/share"
)

const (
	// stepTimeout leaves the step time to write the results. It is longer than the longest timeout of a call.
	stepTimeout = 20 * time.Second
	// maxCalls is how many calls this process makes at once. Each call needs a connection and a few buffers. Workspaces
	// share the calls.
	maxCalls = 64
	// maxCallsOfStep leaves calls to other apps when all calls of one app are slow.
	maxCallsOfStep = 8
	// maxAnswer is far more bytes than a verdict takes.
	maxAnswer = 64 << 10
)

// Headers of a call.
const (
	headerID        = "Idempotency-Key"
	headerSignature = "Windlass-Signature"
)

// Facts are the facts about the app that only the database has.
type Facts struct {
	// Workspace, Project and Environment are the current names.
	Workspace, Project, Environment string
	// Secrets has the requested secrets that exist, by name.
	Secrets map[string][]byte
}

// Config configures a Client.
type Config struct {
	// Lookup reads the facts of the app that the call is about.
	Lookup func(ctx context.Context, call analysis.Call, secrets []string) (Facts, error)
	// Allow has networks in which webhooks may be, in addition to public addresses.
	Allow      guard.Networks
	UserAgent  string
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Client calls webhooks. It is safe for concurrent use.
type Client struct {
	cfg   Config
	http  *http.Client
	slots *share.Slots
	took  *prometheus.HistogramVec
}

// New checks cfg.
func New(cfg Config) (*Client, error) {
	if cfg.Lookup == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("webhook: Lookup, Log and Registerer are required")
	}
	took, err := registerDuration(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return &Client{cfg: cfg, slots: share.NewSlots(maxCalls), took: took, http: callout.NewClient(cfg.Allow, stepTimeout)}, nil
}

// Measure makes the calls that are due, all for one app. It leaves out calls for which no time is left, and calls that
// are cut off because ctx ends. Neither is a failure of the webhook.
func (c *Client) Measure(ctx context.Context, due []plan.Measure) (out []plan.Measurement) {
	if len(due) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	var secrets []string
	for _, m := range due {
		if m.Hook.SigningSecret != "" {
			secrets = append(secrets, m.Hook.SigningSecret)
		}
	}
	facts, err := c.cfg.Lookup(ctx, due[0].Hook.Call, secrets)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		c.cfg.Log.WarnContext(ctx, "cannot read the facts for webhooks", "app", due[0].Hook.Call.App.ID, "error", err)
		for _, m := range due {
			out = append(out, measurementOf(m, analysis.Figures{Problem: "the control plane cannot read the facts for the webhook"}))
		}
		return out
	}
	var mu sync.Mutex
	var calling sync.WaitGroup
	mine := make(chan struct{}, maxCallsOfStep)
	for _, m := range due {
		calling.Go(func() {
			select {
			case mine <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-mine }()
			figures, ok := c.callHook(ctx, m, facts)
			if !ok {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, measurementOf(m, figures))
		})
	}
	calling.Wait()
	return out
}

func measurementOf(m plan.Measure, f analysis.Figures) plan.Measurement {
	return plan.Measurement{RegionID: m.RegionID, Check: m.Check, Since: m.Since, At: time.Now().UnixMilli(), Figures: f}
}

// callHook makes one call, and reports whether there was time for it.
func (c *Client) callHook(ctx context.Context, m plan.Measure, facts Facts) (f analysis.Figures, ok bool) {
	h := *m.Hook
	if c.slots.Acquire(ctx, m.WorkspaceID) != nil {
		return f, false
	}
	defer c.slots.Release(m.WorkspaceID)
	if end, limited := ctx.Deadline(); limited && time.Until(end) < h.Timeout {
		return f, false // the call would be cut off, and the webhook blamed for it
	}
	outcome := "error"
	begin := time.Now()
	defer func() { c.took.WithLabelValues(outcome).Observe(time.Since(begin).Seconds()) }()
	answer, figure, err := c.call(ctx, h, facts)
	switch {
	case err == nil:
		outcome = outcomes[answer.Verdict]
		return analysis.Figures{Answer: answer, New: figure}, true
	case ctx.Err() != nil:
		return f, false
	}
	return analysis.Figures{Problem: "the webhook cannot be asked: " + analysis.Printable(err.Error())}, true
}

var outcomes = map[analysis.Verdict]string{analysis.Passed: "pass", analysis.Failed: "fail", analysis.Inconclusive: "inconclusive"}

func (c *Client) call(ctx context.Context, h analysis.Hook, facts Facts) (*analysis.Answer, *float64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.Timeout, fmt.Errorf("it has not answered within %s", h.Timeout))
	defer cancel()
	req, err := c.newRequest(ctx, h, facts)
	if err != nil {
		return nil, nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, callout.Problem(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := callout.Refused(resp.StatusCode); err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, nil, callout.Problem(ctx, err)
	case len(body) > maxAnswer:
		return nil, nil, fmt.Errorf("its answer is larger than %d bytes", maxAnswer)
	}
	return analysis.ParseAnswer(body)
}

// newRequest returns the call, signed if the hook has a signing secret.
func (c *Client) newRequest(ctx context.Context, h analysis.Hook, facts Facts) (*http.Request, error) {
	// The API checks the URL, but a stored policy may be older than the present checks.
	u, err := analysis.ParseHookURL(h.URL)
	if err != nil {
		return nil, fmt.Errorf("its url cannot be used: %w", err)
	}
	h.Call.Workspace.Name, h.Call.Project.Name, h.Call.Environment.Name = facts.Workspace, facts.Project, facts.Environment
	body, err := json.Marshal(h.Call)
	if err != nil {
		return nil, fmt.Errorf("encode the call: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("its url cannot be used")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	req.Header.Set(headerID, h.Call.ID)
	if h.SigningSecret == "" {
		return req, nil
	}
	key, ok := facts.Secrets[h.SigningSecret]
	if !ok {
		return nil, fmt.Errorf("its call must be signed with secret %s, which does not exist any more: set it, or deploy without it", h.SigningSecret)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(body)
	req.Header.Set(headerSignature, "sha256="+hex.EncodeToString(mac.Sum(nil)))
	return req, nil
}
