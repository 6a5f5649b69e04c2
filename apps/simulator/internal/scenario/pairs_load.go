package scenario

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pairsTokens is the length of an answer.
const pairsTokens = 9

// pairsLoad sends completions that stream to a gateway, independently of how long answers take. The times between
// requests are exponentially distributed. Make it with newPairsLoad.
type pairsLoad struct {
	gateway, host string
	random        *rand.Rand
	client        *http.Client

	mu  sync.Mutex
	now pairsOutcome
}

func newPairsLoad(gateway, host string, random *rand.Rand) *pairsLoad {
	// An idle connection is not kept for long, because a gateway that stops reads from it for 2 s more.
	transport := &http.Transport{MaxIdleConnsPerHost: 1024, IdleConnTimeout: time.Second, DisableCompression: true}
	l := &pairsLoad{gateway: gateway, host: host, random: random, client: &http.Client{Transport: transport, Timeout: askTimeout}}
	l.reset()
	return l
}

// reset forgets the outcome of earlier requests.
func (l *pairsLoad) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = pairsOutcome{pairs: map[string]int{}}
}

func (l *pairsLoad) sentSoFar() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now.sent
}

// hasAnswerOf reports whether a pair of servers of the version answered.
func (l *pairsLoad) hasAnswerOf(version string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now.pairs[version+"+"+version] > 0
}

func (l *pairsLoad) outcome() pairsOutcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.now
	out.failures, out.pairs = slices.Clone(out.failures), maps.Clone(out.pairs)
	return out
}

// run sends requests until end is closed, and returns when all of them are answered.
func (l *pairsLoad) run(ctx context.Context, perSecond float64, end <-chan struct{}) {
	var open sync.WaitGroup
	defer open.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for next := time.Now(); ; {
		next = next.Add(time.Duration(l.random.ExpFloat64() / perSecond * float64(time.Second)))
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-timer.C:
			open.Go(func() { l.send(ctx) })
		}
	}
}

// send sends a request, and records what became of it.
func (l *pairsLoad) send(ctx context.Context) {
	begun := time.Now()
	l.mu.Lock()
	l.now.sent++
	l.mu.Unlock()
	answer, err := l.ask(ctx)
	ended := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.now.first.Add(answer.first)
	case ctx.Err() == nil:
		l.now.failures = append(l.now.failures, pairsFailure{begun, ended, err.Error()})
	}
	switch {
	case answer.decode == "":
	case answer.prefill == "":
		l.now.alone++
	case answer.prefill != answer.decode:
		l.now.mixed++
	}
	if err == nil {
		l.now.pairs[answer.prefill+"+"+answer.decode]++
	}
}

// pairsAnswer is the answer to a request. prefill and decode are the versions of the servers, empty if they are not known.
type pairsAnswer struct {
	prefill, decode string
	first           time.Duration
}

// ask sends a request, and reads its answer to the end.
func (l *pairsLoad) ask(ctx context.Context) (answer pairsAnswer, err error) {
	const body = `{"model":"echo","prompt":"one two three four five six seven eight nine","stream":true,"ignore_eos":true,"max_tokens":%d}`
	begun := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.gateway+"/v1/completions", strings.NewReader(fmt.Sprintf(body, pairsTokens)))
	if err != nil {
		return answer, err
	}
	req.Host = l.host
	req.Header.Set("Content-Type", "application/json")
	res, err := l.client.Do(req)
	if err != nil {
		return answer, err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 300)) // the status says enough
		return answer, fmt.Errorf("%s: %s %s", res.Status, res.Header.Get("Windlass-Error"), text)
	}
	answer.prefill, answer.decode = versionsOf(res.Header)
	tokens, last := 0, ""
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if tokens++; tokens == 1 {
			answer.first = time.Since(begun)
		}
		last = data
	}
	if err := lines.Err(); err != nil {
		return answer, fmt.Errorf("after %d events: %w", tokens, err)
	}
	if tokens < pairsTokens || last != "[DONE]" {
		return answer, fmt.Errorf("the stream has %d events, the last is %.200q", tokens, last)
	}
	return answer, nil
}

// serversOf returns the pids of the region's model servers of a role, in ascending order.
func (r *regionParts) serversOf(role string) (pids []int) {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil // cannot happen: the pattern is valid
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err != nil {
			continue
		}
		// A process may end at any time.
		args, err := os.ReadFile(entry + "/cmdline")
		if err != nil || !bytes.Contains(args, []byte("\x00"+FollowInstanceCommand+"\x00")) {
			continue
		}
		environ, err := os.ReadFile(entry + "/environ")
		if err == nil && bytes.Contains(environ, []byte("WINDLASS_ROLE="+role+"\x00")) && bytes.Contains(environ, []byte("="+r.dir+"/")) && !bytes.Contains(args, []byte("\x00__shim\x00")) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}
