// Package payload logs the bodies of requests and answers, for apps whose route enables it. The
// operator of the gateway says where the log is. Headers and queries are never logged, because they
// contain credentials.
//
// Requests do not wait for the log. Entries that cannot be written as fast as they come are dropped and
// counted. The entries that wait to be written are limited, and so is the size of the files.
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

// DefaultMaxBytes is the default of Policy.MaxBytes.
const DefaultMaxBytes = 16 << 10

// Policy says which requests of a route are logged, and how.
type Policy struct {
	// Sample is the share of requests that are logged, in (0, 1].
	Sample float64
	// MaxBytes is how many bytes of a body are logged, from its beginning.
	MaxBytes int
	// Redact are names of JSON fields whose values are left out.
	Redact map[string]bool
}

const (
	// maxWaiting and maxWaitingBytes limit the entries that wait to be written, by their number and their bytes.
	maxWaiting      = 1024
	maxWaitingBytes = 32 << 20
)

// Log writes entries. It is safe for concurrent use. Make it with New, and call Run once.
type Log struct {
	to      io.Writer
	rand    func() float64
	lines   chan []byte
	waiting atomic.Int64
	written prometheus.Counter
	dropped *prometheus.CounterVec
}

// New returns a Log that writes lines of JSON, each with one call of to.Write. rand returns a number in [0, 1).
func New(to io.Writer, rand func() float64, registerer prometheus.Registerer) (*Log, error) {
	l := &Log{to: to, rand: rand, lines: make(chan []byte, maxWaiting)}
	return l, l.registerMetrics(registerer)
}

// Entry is a request that is logged.
type Entry struct {
	policy          *Policy
	Request, Answer Body
}

// Begin decides by Policy.Sample whether a request is logged. nil: it is not logged. A nil Log logs no request.
func (l *Log) Begin(p *Policy) *Entry {
	if l == nil || p == nil || l.rand() >= p.Sample {
		return nil
	}
	return &Entry{policy: p, Request: Body{max: p.MaxBytes}, Answer: Body{max: p.MaxBytes}}
}

// Body keeps the beginning of a body. It is safe for concurrent use, because a request's body may still be
// sent when the answer has ended.
type Body struct {
	max  int
	mu   sync.Mutex
	kept []byte
	size int64
}

// Write counts p, and keeps it up to the limit of the body.
func (b *Body) Write(p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.size += int64(len(p))
	if room := b.max - len(b.kept); room > 0 {
		b.kept = append(b.kept, p[:min(room, len(p))]...)
	}
}

// Facts are the facts that are logged about a request that has ended.
type Facts struct {
	Time         time.Time `json:"time"`
	RequestID    string    `json:"request_id"`
	App          string    `json:"app"`
	DeploymentID string    `json:"deployment_id,omitempty"`
	Version      int32     `json:"version,omitempty"`
	Method       string    `json:"method"`
	Path         string    `json:"path"`
	Status       int       `json:"status"`
	// RequestType and AnswerType are content types. RequestCoded and AnswerCoded are content codings.
	RequestType, AnswerType   string `json:"-"`
	RequestCoded, AnswerCoded string `json:"-"`
}

// End queues the entry for Run to write, and drops it if too many entries wait. It does nothing for a nil entry.
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

// Run writes entries until ctx ends, and then the entries that still wait.
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
