package scenario

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/measure"
)

// openLoad sends completions that stream to a gateway, independently of how long answers take. The times between
// requests are exponentially distributed. Make it with newOpenLoad.
type openLoad struct {
	gateway, host string
	random        *rand.Rand
	client        *http.Client

	mu        sync.Mutex
	perSecond float64
	// changed is closed and replaced when perSecond changes.
	changed chan struct{}
	sent    int
	// waiting has when requests without a first token were sent, by the number of the request.
	waiting map[int]time.Time
	// firsts are the first tokens of the last firstsWindow, in the order in which they came.
	firsts []firstToken
	failed []string
	// answers counts answers by the label of the version.
	answers map[string]int
}

// firstToken is when the first token of a request came, and how long after the request.
type firstToken struct {
	at   time.Time
	took time.Duration
}

const (
	// firstsWindow is the time over which p95 of the first token is measured.
	firstsWindow = 10 * time.Second
	// followTokens is the length of an answer in tokens. followFirst is the time of an instance from a free slot to
	// the first token, and followTokenRate is the rate of the later tokens per second. So an answer takes a second,
	// and a client that always waits for its answer sends one request a second.
	followTokens    = 9
	followFirst     = 200 * time.Millisecond
	followTokenRate = 10
	// askTimeout bounds a request, with its wait in queues.
	askTimeout = 2 * time.Minute
)

func newOpenLoad(gateway, host string, random *rand.Rand) *openLoad {
	return &openLoad{
		gateway: gateway, host: host, random: random,
		client:  &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}, Timeout: askTimeout},
		changed: make(chan struct{}), waiting: map[int]time.Time{}, answers: map[string]int{},
	}
}

// set changes the rate.
func (l *openLoad) set(perSecond float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.perSecond = perSecond
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *openLoad) currentRate() (perSecond float64, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.perSecond, l.changed
}

// run sends requests until end is closed, and returns when all of them are answered.
func (l *openLoad) run(ctx context.Context, end <-chan struct{}) {
	defer l.client.CloseIdleConnections()
	var open sync.WaitGroup
	defer open.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for next := time.Now(); ; {
		perSecond, changed := l.currentRate()
		due := timer.C
		if perSecond > 0 {
			next = next.Add(time.Duration(l.random.ExpFloat64() / perSecond * float64(time.Second)))
			timer.Reset(time.Until(next))
		} else {
			due = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-changed:
			// The distribution has no memory, so the wait may begin again.
			next = time.Now()
		case <-due:
			open.Go(func() { l.send(ctx) })
		}
	}
}

// send sends a request, and records its result.
func (l *openLoad) send(ctx context.Context) {
	begun := time.Now()
	l.mu.Lock()
	number := l.sent
	l.sent++
	l.waiting[number] = begun
	l.mu.Unlock()
	version, err := l.sendRequest(ctx, func() {
		now := time.Now()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiting, number)
		l.firsts = append(l.firsts, firstToken{now, now.Sub(begun)})
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, number)
	switch {
	case err == nil:
		l.answers[version]++
	case ctx.Err() == nil:
		l.failed = append(l.failed, fmt.Sprintf("after %s: %v", time.Since(begun).Round(time.Millisecond), err))
	}
}

// sendRequest sends a request, and reads its answer to the end. It calls first at the first token. It returns the label of the
// version that answered.
func (l *openLoad) sendRequest(ctx context.Context, first func()) (version string, err error) {
	const body = `{"model":"echo","prompt":"a","stream":true,"ignore_eos":true,"max_tokens":%d}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.gateway+"/v1/completions", strings.NewReader(fmt.Sprintf(body, followTokens)))
	if err != nil {
		return "", err
	}
	req.Host = l.host
	req.Header.Set("Content-Type", "application/json")
	res, err := l.client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 300)) // the status says enough
		return "", fmt.Errorf("%s: %s %s", res.Status, res.Header.Get("Windlass-Error"), text)
	}
	// Each token is an event, and so are the reason of the end and the end.
	events, last := 0, ""
	for lines := bufio.NewScanner(res.Body); ; {
		if !lines.Scan() {
			if err := lines.Err(); err != nil {
				return "", fmt.Errorf("after %d events: %w", events, err)
			}
			break
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if events++; events == 1 {
			first()
		}
		last = data
	}
	if events != followTokens+2 || last != "[DONE]" {
		return "", fmt.Errorf("the stream has %d events instead of %d, the last is %.200q", events, followTokens+2, last)
	}
	return res.Header.Get("X-Model-Version"), nil
}

// loadNow is the state of a load.
type loadNow struct {
	perSecond float64
	sent      int
	waiting   int
	// p95 is the 95th percentile of the time to the first token, over the last firstsWindow. Requests that still wait count with
	// the time that they have waited. known is false if there were none.
	p95   time.Duration
	known bool
}

// lookAt returns the state of the load now, and forgets older first tokens.
func (l *openLoad) lookAt(now time.Time) loadNow {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := 0
	for old < len(l.firsts) && now.Sub(l.firsts[old].at) > firstsWindow {
		old++
	}
	l.firsts = append(l.firsts[:0], l.firsts[old:]...)
	var times measure.Durations
	for _, f := range l.firsts {
		times.Add(f.took)
	}
	for _, since := range l.waiting {
		times.Add(now.Sub(since))
	}
	return loadNow{perSecond: l.perSecond, sent: l.sent, waiting: len(l.waiting), p95: times.Quantile(0.95), known: times.Len() > 0}
}

// outcomeSoFar returns the number of sent requests, the errors of failed requests, and the answers by the label of the
// version.
func (l *openLoad) outcomeSoFar() (sent int, failed []string, answers map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent, l.failed, maps.Clone(l.answers)
}
