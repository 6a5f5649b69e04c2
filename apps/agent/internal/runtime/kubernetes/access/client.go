package access

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/windlass-run/windlass/pkg/backoff"
)

// maxRetryAfter limits the delay that a server may request. So a proxy that requests an hour does
// not stop calls after the server is back.
const maxRetryAfter = time.Minute

const (
	// callsPerSecond and callBurst limit the agent's calls. They are high enough to create a region
	// with a thousand deployments within minutes, and low enough to leave room for other clients of
	// the server. Open watches do not count.
	callsPerSecond = 50
	callBurst      = 100
)

// newClient returns a client with our rate limits, whose calls are counted.
func newClient(cfg Config, calls *prometheus.CounterVec, g *breaker) (*clientset, error) {
	c := rest.CopyConfig(cfg.Client)
	c.QPS, c.Burst = callsPerSecond, callBurst
	c.UserAgent = "windlass-agent/" + cfg.AgentVersion
	// Protobuf takes fewer bytes and less work than JSON.
	c.AcceptContentTypes = apiruntime.ContentTypeProtobuf + "," + apiruntime.ContentTypeJSON
	c.ContentType = apiruntime.ContentTypeProtobuf
	if err := findDeadConnections(); err != nil {
		return nil, err
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &counted{next: next, calls: calls, breaker: g, pace: &pacer{policy: cfg.Reopen, random: cfg.Random}}
	})
	return newClientset(c)
}

// findDeadConnections makes the client library notice within 9 s, instead of 45 s, that a
// connection died without a reset. A watch on such a connection gets no events, as if nothing
// changed in the cluster. The library pings a connection after 5 s of silence, and closes it if no
// answer comes within 4 s. It reads these times only from the environment. Values that an operator
// set are kept.
func findDeadConnections() error {
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "5", "HTTP2_PING_TIMEOUT_SECONDS": "4"} {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, seconds); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// counted counts calls by verb, resource and answer. It also hides Retry-After from client-go,
// which would otherwise repeat the call up to ten times. Only the breaker decides how often calls
// are repeated.
type counted struct {
	next    http.RoundTripper
	calls   *prometheus.CounterVec
	breaker *breaker
	pace    *pacer
}

func (c *counted) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Query().Get("watch") != "" {
		if err := c.pace.wait(req); err != nil {
			return nil, err
		}
	}
	res, err := c.next.RoundTrip(req)
	code := "error"
	if err == nil {
		code = strconv.Itoa(res.StatusCode)
		if after := res.Header.Get("Retry-After"); after != "" {
			res.Header.Del("Retry-After")
			if seconds, err := strconv.Atoi(after); err == nil {
				c.breaker.askedToWait(time.Now().Add(min(time.Duration(seconds)*time.Second, maxRetryAfter)))
			}
		}
	}
	verb, resource := classifyRequest(req)
	c.calls.WithLabelValues(verb, resource, code).Inc()
	return res, err
}

// classifyRequest returns the verb and the resource of a request, in the terms of RBAC.
func classifyRequest(req *http.Request) (verb, resource string) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	// api/v1/... or apis/group/version/...
	skip := 2
	if len(parts) > 0 && parts[0] == "apis" {
		skip = 3
	}
	if len(parts) < skip {
		return strings.ToLower(req.Method), "other"
	}
	parts = parts[skip:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	named := len(parts) > 1
	resource = "other"
	if len(parts) > 0 {
		resource = parts[0]
	}
	switch req.Method {
	case http.MethodGet:
		switch {
		case req.URL.Query().Get("watch") != "":
			verb = "watch"
		case named:
			verb = "get"
		default:
			verb = "list"
		}
	case http.MethodPost:
		verb = "create"
	case http.MethodPut:
		verb = "update"
	case http.MethodPatch:
		verb = "patch"
	case http.MethodDelete:
		verb = "delete"
		if !named {
			verb = "deletecollection"
		}
	default:
		verb = strings.ToLower(req.Method)
	}
	return verb, resource
}

// pacer delays the openings of a watch that keeps ending soon. For most errors, the client library
// does so itself. But it reopens a watch at once, without limit, if the server always answers that
// the version has expired.
type pacer struct {
	policy backoff.Policy
	random func() float64

	mu      sync.Mutex
	watches map[string]*opened
}

// opened counts how many times in a row a watch was opened soon after the previous opening.
type opened struct {
	last   time.Time
	streak int
}

// A watch that lasted for wellAfter counts as healthy. After that, freeOpenings openings do not
// wait, because it is normal to open a watch after a list or after an expired version.
const (
	wellAfter    = 30 * time.Second
	freeOpenings = 2
)

func (p *pacer) wait(req *http.Request) error {
	q := req.URL.Query()
	d := p.delayOf(req.URL.Path+" "+q.Get("labelSelector")+" "+q.Get("fieldSelector"), time.Now())
	if d == 0 {
		return nil
	}
	return backoff.Sleep(req.Context(), d)
}

// delayOf returns how long to wait before the watch is opened.
func (p *pacer) delayOf(watch string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watches == nil {
		p.watches = map[string]*opened{}
	}
	o := p.watches[watch]
	if o == nil {
		o = &opened{last: now}
		p.watches[watch] = o
		return 0
	}
	if now.Sub(o.last) >= wellAfter {
		o.streak = 0
	}
	o.streak++
	d := time.Duration(0)
	if o.streak > freeOpenings {
		d = p.policy.Delay(o.streak-freeOpenings-1, p.random)
	}
	o.last = now.Add(d)
	return d
}

// breaker holds back calls to a server that could not answer. From time to time, it lets one call
// through to find out whether the server is back. So the number of calls during an outage depends
// only on its duration, and not on the number of waiting deployments.
type breaker struct {
	policy backoff.Policy
	random func() float64

	mu       sync.Mutex
	failures int
	until    time.Time
	cause    error
}

// mayPass returns a wait of 0 if a call may be made now. Otherwise, it returns how long to wait, and
// why.
func (g *breaker) mayPass(now time.Time) (wait time.Duration, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Before(g.until) {
		return g.until.Sub(now), g.cause
	}
	if g.failures > 0 {
		// This call finds out whether the server is back. Other calls wait for its outcome.
		g.until = now.Add(g.policy.Delay(g.failures, g.random))
	}
	return 0, nil
}

// askedToWait records that the server asked clients to make no calls before until.
func (g *breaker) askedToWait(until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until.After(g.until) {
		g.until, g.cause = until, errAskedToWait
	}
}

// noteFailure records that the server could not answer.
func (g *breaker) noteFailure(now time.Time, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until := now.Add(g.policy.Delay(g.failures, g.random)); until.After(g.until) {
		g.until = until
	}
	g.failures++
	g.cause = cause
}

func (g *breaker) noteSuccess() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failures > 0 {
		g.failures, g.until, g.cause = 0, time.Time{}, nil
	}
}

var errAskedToWait = errors.New("the API server asked clients to wait (Retry-After)")
