package chaos

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// unreliableTransport is the transport of an agent's calls. It loses, doubles and delays reports, so that they arrive
// after reports that were sent later. For a lost report the agent gets the error of a broken connection.
type unreliableTransport struct {
	next http.RoundTripper
	on   atomic.Bool

	mu  sync.Mutex
	rnd *rand.Rand
	// doubled, delayed and lost count reports, for the result.
	doubled, delayed, lost atomic.Int64
}

var errLost = errors.New("the answer was lost")

// latest is the longest delay of a copy. A copy may arrive after the agent's next reports, and in its next
// session.
const latest = 4 * time.Second

// maxCopy bounds the size of reports that are copied.
const maxCopy = 4 << 20

// addCounts adds the numbers of changed reports to counts, by kind.
func (m *unreliableTransport) addCounts(counts map[string]int64) {
	counts["doubled"] += m.doubled.Load()
	counts["delayed"] += m.delayed.Load()
	counts["lost"] += m.lost.Load()
}

// RoundTrip implements http.RoundTripper.
func (m *unreliableTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if !m.on.Load() || !strings.HasSuffix(req.URL.Path, "/Report") || req.Body == nil {
		return m.next.RoundTrip(req)
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, maxCopy))
	if err != nil {
		return nil, err
	}
	_ = req.Body.Close() // it was read
	first := req.Clone(req.Context())
	first.Body, first.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	m.mu.Lock()
	what, after := m.rnd.IntN(6), time.Duration(m.rnd.Float64()*float64(latest))
	m.mu.Unlock()
	switch what {
	case 0:
		// The report is sent twice: at once and some time later.
		m.doubled.Add(1)
		m.resendLater(req, body, after)
		return m.next.RoundTrip(first)
	case 1:
		// The report arrives late, and the agent gets the error of a broken connection. So the agent sends the report
		// again with the same sequence. It may send newer reports before the late report arrives.
		m.delayed.Add(1)
		m.resendLater(req, body, after)
		return nil, errLost
	case 2:
		// The report arrives, and its answer is lost.
		m.lost.Add(1)
		resp, err := m.next.RoundTrip(first)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		return nil, errLost
	}
	return m.next.RoundTrip(first)
}

// resendLater sends a copy later and drops its answer.
func (m *unreliableTransport) resendLater(req *http.Request, body []byte, after time.Duration) {
	header := req.Header.Clone()
	time.AfterFunc(after, func() {
		copied, err := http.NewRequest(req.Method, req.URL.String(), bytes.NewReader(body)) //nolint:noctx // it outlives the call that it copies; the transport bounds it
		if err != nil {
			return
		}
		copied.Header = header
		resp, err := m.next.RoundTrip(copied)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	})
}

// CloseIdleConnections is called by http.Client's method of the same name.
func (m *unreliableTransport) CloseIdleConnections() {
	if c, ok := m.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
