package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/bare"
	"github.com/windlass-run/windlass/pkg/backoff"
)

// Requests come in bursts, open loop: at random times, whether or not earlier ones were answered. Half of the pauses
// between bursts are long enough for an app to go to zero.
const (
	requestsPerSecond = 12
	// longestWait is how long a request may wait for an instance, and longestRequest how long a client waits for the
	// answer.
	longestWait    = 2 * time.Minute
	longestRequest = longestWait + 30*time.Second
	// killSlack is how long after a kill a connection may still look open.
	killSlack = 100 * time.Millisecond

	// clientHeader is in requests of clients.
	clientHeader = "Chaos-Client"

	requestFailed = "a request failed"
	heldForEver   = "a request is held for ever"
	stoppedInUse  = "an instance stopped with a request"
)

// appRegion is an app in a region. An empty app means all apps.
type appRegion struct{ app, region string }

// kill is the time in which requests may fail: the time at which an instance crashed, or the time from the kill of a
// gateway until the next gateway serves. A zero end is not known yet.
type kill struct {
	at       appRegion
	from, to time.Time
}

// requests has the requests of clients, and the servers of instances.
type requests struct {
	checker *checker
	history *history
	models  *modelServers
	// gatewayOf returns the host:port of a region's gateway.
	gatewayOf func(region string) string

	mu    sync.Mutex
	kills []*kill
	open  map[int64]opened
	// served is the number of requests that instances have now.
	served atomic.Int64
	next   int64
	// answered counts the requests with an answer. excused counts the failed requests whose instance or gateway was
	// killed. waited counts the requests that took slowAnswer or longer.
	answered, excused, waited int
	slowest                   time.Duration
	// ofApp counts them by app.
	ofApp map[string]*tally
}

// tally counts the requests for an app, as requests does.
type tally struct {
	Answered int `json:"answered"`
	Killed   int `json:"killed"`
}

type opened struct {
	at    appRegion
	begun time.Time
}

// slowAnswer is longer than any instance takes for an answer.
const slowAnswer = 500 * time.Millisecond

func newRequests(c *checker, h *history, gatewayOf func(string) string) *requests {
	q := &requests{checker: c, history: h, gatewayOf: gatewayOf, open: map[int64]opened{}, ofApp: map[string]*tally{}}
	q.models = newModelServers(q)
	return q
}

// serve starts the server of an instance: see agent.SimulatedConfig. An answer takes 50 to 400 ms.
func (q *requests) serve(region, app, id string) (address string, end func(crashed bool)) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		q.checker.recordViolationf("no address for an instance", app, place{region: region}, "%s: %v", id, err)
		return "127.0.0.1:1", func(bool) {}
	}
	var active atomic.Int64 // leaves out the probes of the gateway, and the agent
	var models *modelServer
	if app == serversName {
		models = q.models.add(region, id)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(clientHeader) != "" {
			active.Add(1)
			q.served.Add(1)
			defer func() { active.Add(-1); q.served.Add(-1) }()
			if models == nil {
				answerSlowly(w, r, id)
			}
		}
		if models != nil {
			models.ServeHTTP(w, r)
		}
	})}
	go func() { _ = server.Serve(l) }() // until Close
	return l.Addr().String(), func(crashed bool) {
		n := active.Load()
		q.models.end(id)
		switch {
		case crashed:
			q.instanceCrashed(region, app)
		case n > 0:
			q.checker.recordViolationf(stoppedInUse, app, place{region: region}, "instance %s had %d requests", id, n)
		}
		_ = server.Close() // its listener is closed in any case
	}
}

// answerSlowly answers a request of a client.
func answerSlowly(w http.ResponseWriter, r *http.Request, id string) {
	if backoff.Sleep(r.Context(), 50*time.Millisecond+rand.N(350*time.Millisecond)) == nil {
		_, _ = io.WriteString(w, id) // the client counts a failed answer
	}
}

// instanceCrashed records that requests which an instance of an app has now may fail.
func (q *requests) instanceCrashed(region, app string) {
	apps := []string{app}
	if app == serversName {
		for i := range modelApps {
			apps = append(apps, modelName(i))
		}
	}
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, app := range apps {
		q.kills = append(q.kills, &kill{appRegion{app, region}, now, now.Add(killSlack)})
	}
}

// violatedUnlessKilled records a violation about requests of the last second, unless something on their way was killed.
func (q *requests) violatedUnlessKilled(at appRegion, kind, text string) {
	now := time.Now()
	q.mu.Lock()
	killed := q.wasKilled(at, now.Add(-time.Second), now)
	q.mu.Unlock()
	if !killed {
		q.checker.recordViolationf(kind, at.app, place{region: at.region}, "%s", text)
	}
}

// gatewayKilled records that requests at the region's gateway may fail, until the returned function is called.
func (q *requests) gatewayKilled(region string) (serves func()) {
	k := &kill{at: appRegion{region: region}, from: time.Now()}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.kills = append(q.kills, k)
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		k.to = time.Now().Add(killSlack)
	}
}

// wasKilled reports whether an instance of the app, or the gateway, was killed while a request was open. The caller
// holds mu.
func (q *requests) wasKilled(at appRegion, from, to time.Time) bool {
	return slices.ContainsFunc(q.kills, func(k *kill) bool {
		return k.at.region == at.region && (k.at.app == "" || k.at.app == at.app) && !k.from.After(to) && (k.to.IsZero() || !k.to.Before(from))
	})
}

// begin records a request that begins. The returned function records its end.
func (q *requests) begin(at appRegion) (done func(failed error)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next++
	n, begun := q.next, time.Now()
	q.open[n] = opened{at, begun}
	return func(failed error) {
		now := time.Now()
		q.mu.Lock()
		delete(q.open, n)
		took := now.Sub(begun)
		if took >= slowAnswer {
			q.waited++
		}
		q.slowest = max(q.slowest, took)
		of := q.ofApp[at.app]
		if of == nil {
			of = &tally{}
			q.ofApp[at.app] = of
		}
		broken := false
		switch {
		case failed == nil:
			q.answered++
			of.Answered++
		case q.wasKilled(at, begun, now):
			q.excused++
			of.Killed++
		default:
			broken = true
		}
		q.mu.Unlock()
		if failed != nil {
			q.history.add(event{app: at.app, region: at.region, part: "client", text: fmt.Sprintf("a request failed after %s: %v", took.Round(time.Millisecond), failed)})
		}
		if broken {
			q.checker.recordViolationf(requestFailed, at.app, place{region: at.region}, "after %s: %v", took.Round(time.Millisecond), failed)
		}
	}
}

// oldestWaiting returns the request that has waited longest, and the number of requests that wait.
func (q *requests) oldestWaiting() (oldest opened, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, o := range q.open {
		if oldest.begun.IsZero() || o.begun.Before(oldest.begun) {
			oldest = o
		}
	}
	return oldest, len(q.open)
}

// forgetKills forgets the kills that have ended, if no request is open.
func (q *requests) forgetKills() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.kills = slices.DeleteFunc(q.kills, func(k *kill) bool { return !k.to.IsZero() && len(q.open) == 0 })
}

// client sends requests to an app in a region.
type client struct {
	requests *requests
	at       appRegion
	host     string
	path     string
	http     *http.Client
	rnd      *rand.Rand
}

func (q *requests) newClient(at appRegion, host string, rnd *rand.Rand) *client {
	// A connection that a killed gateway left open would fail a request that the gateway never got.
	path := "/"
	if isModel(at.app) {
		path = modelPath(at.app)
	}
	return &client{q, at, host, path, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: longestRequest}, rnd}
}

// sendBursts sends bursts of requests until ctx ends, and does not wait for the answers. They may outlive ctx.
func (c *client) sendBursts(ctx context.Context) {
	for ctx.Err() == nil {
		burst := time.Now().Add(randomBetween(c.rnd, time.Second, 4*time.Second))
		for time.Now().Before(burst) && backoff.Sleep(ctx, time.Duration(c.rnd.ExpFloat64()*float64(time.Second)/requestsPerSecond)) == nil {
			method := []string{http.MethodGet, http.MethodPost}[c.rnd.IntN(2)]
			go func() { _ = c.send(context.WithoutCancel(ctx), method) }() // it records its failure
		}
		pause := randomBetween(c.rnd, time.Second, 4*time.Second)
		if c.rnd.IntN(2) == 0 {
			pause = randomBetween(c.rnd, zeroAfter, 2*zeroAfter)
		}
		_ = backoff.Sleep(ctx, pause) // ctx is checked above
	}
}

// send sends a request, and records and returns how it failed.
func (c *client) send(ctx context.Context, method string) error {
	done := c.requests.begin(c.at)
	err := c.get(ctx, method)
	done(err)
	return err
}

func (c *client) get(ctx context.Context, method string) error {
	ctx, cancel := context.WithTimeout(ctx, longestRequest)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, method, "http://"+c.requests.gatewayOf(c.at.region)+c.path, http.NoBody)
		if err != nil {
			return err
		}
		req.Host = c.host
		req.Header.Set(clientHeader, "1")
		res, err := c.http.Do(req)
		if errors.Is(err, syscall.ECONNREFUSED) && backoff.Sleep(ctx, 50*time.Millisecond) == nil {
			continue // no gateway serves now, and none got the request
		}
		if err != nil {
			return err
		}
		body, err := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		if err = errors.Join(err, res.Body.Close()); err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), "ins_") {
			return fmt.Errorf("%s, %s: %.200s", res.Status, res.Header.Get("Windlass-Error"), body)
		}
		return nil
	}
}

// hostOf returns a host of an app.
func hostOf(ctx context.Context, db *bare.DB, app string) (string, error) {
	rows, err := db.Rows(ctx, "SELECT g.hosts FROM app_routes g JOIN apps a ON a.id = g.app_id WHERE a.name = ? LIMIT 1", app)
	if err != nil || len(rows) == 0 {
		return "", err
	}
	var hosts []string
	if err := json.Unmarshal([]byte(rows[0].Text(0)), &hosts); err != nil || len(hosts) == 0 {
		return "", err
	}
	return hosts[0], nil
}
