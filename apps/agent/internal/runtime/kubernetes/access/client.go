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

// maxRetryAfter bounds the time that a server may ask for, so that a proxy that says
// an hour does not keep us away after the server is back.
const maxRetryAfter = time.Minute

const (
	// callsPerSecond and callBurst are the agent's share of the API server: a region
	// of a thousand deployments is made within minutes, and the server, which takes
	// some hundreds a second from one client before it queues them, has room for
	// others. Watches do not count once they are open.
	callsPerSecond = 50
	callBurst      = 100
)

// newClient returns a client within our limits, whose calls are counted.
func newClient(cfg Config, calls *prometheus.CounterVec, g *gate) (*clientset, error) {
	c := rest.CopyConfig(cfg.Client)
	c.QPS, c.Burst = callsPerSecond, callBurst
	c.UserAgent = "windlass-agent/" + cfg.AgentVersion
	// Half the bytes and a fraction of the work of JSON, for what is watched.
	c.AcceptContentTypes = apiruntime.ContentTypeProtobuf + "," + apiruntime.ContentTypeJSON
	c.ContentType = apiruntime.ContentTypeProtobuf
	if err := findDeadConnections(); err != nil {
		return nil, err
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &counted{next: next, calls: calls, gate: g, pace: &pacer{policy: cfg.Reopen, random: cfg.Random}}
	})
	return newClientset(c)
}

// findDeadConnections makes the client library find a dead connection, which no reset
// ends, in 9 s instead of 45 s. A watch on it hears nothing, and looks like one of a
// quiet cluster. The library reads these times from the environment only. Values that
// an operator set are kept. It pings a connection that has been silent for 5 s.
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

// counted counts calls by verb, resource and answer. It also hides Retry-After
// from client-go, which would repeat the call up to ten times by itself: how often
// we ask is decided in one place, the gate.
type counted struct {
	next  http.RoundTripper
	calls *prometheus.CounterVec
	gate  *gate
	pace  *pacer
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
				c.gate.asked(time.Now().Add(min(time.Duration(seconds)*time.Second, maxRetryAfter)))
			}
		}
	}
	verb, resource := classify(req)
	c.calls.WithLabelValues(verb, resource, code).Inc()
	return res, err
}

// classify names a request as RBAC does.
func classify(req *http.Request) (verb, resource string) {
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

// pacer spaces out the openings of a watch that does not last. The client library
// does so for most errors. But it opens a watch at once, again and again, if the server
// says each time that its version has expired.
type pacer struct {
	policy backoff.Policy
	random func() float64

	mu      sync.Mutex
	watches map[string]*opened
}

// opened counts how often in a row a watch was opened soon after the last opening.
type opened struct {
	last   time.Time
	streak int
}

// A watch that lasted for wellAfter was well. freeOpenings after that do not wait, because
// it is normal that a watch is opened after a list or an expired version.
const (
	wellAfter    = 30 * time.Second
	freeOpenings = 2
)

func (p *pacer) wait(req *http.Request) error {
	q := req.URL.Query()
	d := p.delay(req.URL.Path+" "+q.Get("labelSelector")+" "+q.Get("fieldSelector"), time.Now())
	if d == 0 {
		return nil
	}
	return backoff.Sleep(req.Context(), d)
}

// delay returns how long to wait before the watch is opened.
func (p *pacer) delay(watch string, now time.Time) time.Duration {
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

// gate keeps the agent from asking a server that has just refused everything. One
// call in a while finds out whether it is back, however many deployments wait: the
// number of calls during an outage depends on how long it is, and on nothing else.
type gate struct {
	policy backoff.Policy
	random func() float64

	mu       sync.Mutex
	failures int
	until    time.Time
	cause    error
}

// pass reports whether a call may be made now, and if not, why and for how long not.
func (g *gate) pass(now time.Time) (wait time.Duration, cause error) {
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

// asked notes that the server named a time before which it wants no call.
func (g *gate) asked(until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until.After(g.until) {
		g.until, g.cause = until, errAskedToWait
	}
}

// failed notes that the server could not answer.
func (g *gate) failed(now time.Time, cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until := now.Add(g.policy.Delay(g.failures, g.random)); until.After(g.until) {
		g.until = until
	}
	g.failures++
	g.cause = cause
}

func (g *gate) succeeded() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failures > 0 {
		g.failures, g.until, g.cause = 0, time.Time{}, nil
	}
}

var errAskedToWait = errors.New("the API server asked to be left alone for a while")
