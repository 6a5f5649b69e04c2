// Package payload logs what an app's clients ask and what its instances answer, for apps
// whose route says so, where the gateway's operator says. Headers and queries are never in
// it: that is where log-ins are.
//
// Nothing waits for the log. What cannot be written as fast as it comes is dropped and
// counted; what waits is bounded, and so is what the files take.
package payload

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// DefaultMaxBytes of a body.
const DefaultMaxBytes = 16 << 10

// Policy of a route.
type Policy struct {
	// Sample is the share of requests that are logged, of (0, 1].
	Sample float64
	// MaxBytes of a body, from its beginning.
	MaxBytes int
	// Redact are names of JSON fields whose values are left out.
	Redact map[string]bool
}

const (
	// maxWaiting entries, and bytes of them, wait to be written.
	maxWaiting      = 1024
	maxWaitingBytes = 32 << 20
)

// Log is safe for concurrent use. Make it with New, run it once.
type Log struct {
	to      io.Writer
	rand    func() float64
	lines   chan []byte
	waiting atomic.Int64
	written prometheus.Counter
	dropped *prometheus.CounterVec
}

// New writes lines of JSON, each with one call of to's Write. rand draws of [0, 1).
func New(to io.Writer, rand func() float64, registerer prometheus.Registerer) (*Log, error) {
	l := &Log{to: to, rand: rand, lines: make(chan []byte, maxWaiting)}
	return l, l.registerMetrics(registerer)
}

// Entry is a request that is logged.
type Entry struct {
	policy          *Policy
	Request, Answer Body
}

// Begin draws whether a request is logged; nil: it is not. A nil Log logs none.
func (l *Log) Begin(p *Policy) *Entry {
	if l == nil || p == nil || l.rand() >= p.Sample {
		return nil
	}
	return &Entry{policy: p, Request: Body{max: p.MaxBytes}, Answer: Body{max: p.MaxBytes}}
}

// Body keeps the beginning of what goes through. It is safe for concurrent use: a request's
// may still be sent while its answer has ended.
type Body struct {
	max  int
	mu   sync.Mutex
	kept []byte
	size int64
}

// Write what goes through.
func (b *Body) Write(p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.size += int64(len(p))
	if room := b.max - len(b.kept); room > 0 {
		b.kept = append(b.kept, p[:min(room, len(p))]...)
	}
}

// Facts of a request that has ended.
type Facts struct {
	Time         time.Time `json:"time"`
	RequestID    string    `json:"request_id"`
	App          string    `json:"app"`
	DeploymentID string    `json:"deployment_id,omitempty"`
	Version      int32     `json:"version,omitempty"`
	Method       string    `json:"method"`
	Path         string    `json:"path"`
	Status       int       `json:"status"`
	// RequestType and AnswerType are content types; Coded, content codings.
	RequestType, AnswerType   string `json:"-"`
	RequestCoded, AnswerCoded string `json:"-"`
}

// End has the entry written. A nil entry is not.
func (l *Log) End(e *Entry, f Facts) {
	if e == nil {
		return
	}
	line, err := json.Marshal(struct {
		Facts

		Request shown `json:"request"`
		Answer  shown `json:"answer"`
	}{
		f,
		e.policy.shownBody(&e.Request, f.RequestType, f.RequestCoded), e.policy.shownBody(&e.Answer, f.AnswerType, f.AnswerCoded),
	})
	if err != nil {
		l.dropped.WithLabelValues("encoding").Inc()
		return
	}
	line = append(line, '\n')
	size := int64(len(line))
	if l.waiting.Add(size) > maxWaitingBytes {
		l.waiting.Add(-size)
		l.dropped.WithLabelValues("behind").Inc()
		return
	}
	select {
	case l.lines <- line:
	default:
		l.waiting.Add(-size)
		l.dropped.WithLabelValues("behind").Inc()
	}
}

// Run writes until ctx ends, and then what waits.
func (l *Log) Run(ctx context.Context) error {
	for {
		select {
		case line := <-l.lines:
			l.writeLine(line)
			continue
		case <-ctx.Done():
		}
		for {
			select {
			case line := <-l.lines:
				l.writeLine(line)
			default:
				return ctx.Err()
			}
		}
	}
}

func (l *Log) writeLine(line []byte) {
	l.waiting.Add(-int64(len(line)))
	if _, err := l.to.Write(line); err != nil {
		l.dropped.WithLabelValues("writing").Inc()
		return
	}
	l.written.Inc()
}
