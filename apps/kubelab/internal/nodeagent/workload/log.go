package workload

import (
	"bytes"
	"strings"
	"sync"
	"time"
)

const (
	// logLimit is how many bytes of a run's log are kept, so that the logs of thousands of pods fit in
	// memory.
	logLimit = 128 << 10
	// lineLimit is the length at which a line without an end is cut.
	lineLimit = 16 << 10
	// tailBytes and tailLines limit a log in a termination message, as in the kubelet.
	tailBytes, tailLines = 2048, 80
)

// Line is one line of a log, without its end.
type Line struct {
	At   time.Time
	Text string
}

// Log keeps the end of a program's output. It is safe for concurrent use.
type Log struct {
	mu      sync.Mutex
	lines   []Line
	first   int // number of lines[0], counting from the run's first line
	size    int
	partial []byte
	closed  bool
	changed chan struct{} // nil while no reader waits
}

// Write appends p. It never fails.
func (l *Log) Write(p []byte) (int, error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			l.partial = append(l.partial, p...)
			if len(l.partial) >= lineLimit {
				l.endLine(now)
			}
			break
		}
		l.partial = append(l.partial, p[:end]...)
		p = p[end+1:]
		l.endLine(now)
	}
	l.wakeReaders()
	return n, nil
}

func (l *Log) endLine(now time.Time) {
	l.lines = append(l.lines, Line{At: now, Text: string(l.partial)})
	l.size += len(l.partial) + 1
	l.partial = nil
	drop := 0
	for l.size > logLimit && drop < len(l.lines)-1 {
		l.size -= len(l.lines[drop].Text) + 1
		drop++
	}
	if drop > 0 {
		l.first += drop
		l.lines = append(l.lines[:0], l.lines[drop:]...)
	}
}

func (l *Log) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.partial) > 0 {
		l.endLine(time.Now())
	}
	l.closed = true
	l.wakeReaders()
}

// Closed reports whether the run has ended, so that the log is complete.
func (l *Log) Closed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

func (l *Log) wakeReaders() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Since returns the lines from number n on, without dropped ones, and the number of the next line. If the log
// is not closed, more is a channel that closes when there may be more lines.
func (l *Log) Since(n int) (lines []Line, next int, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next = l.first + len(l.lines)
	if at := max(n-l.first, 0); at < len(l.lines) {
		lines = append(lines, l.lines[at:]...)
	}
	if l.closed {
		return lines, next, nil
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return lines, next, l.changed
}

// Tail returns the end of the log for a termination message.
func (l *Log) Tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, line := range l.lines[max(0, len(l.lines)-tailLines):] {
		b.WriteString(line.Text)
		b.WriteByte('\n')
	}
	b.Write(l.partial)
	text := b.String()
	return strings.ToValidUTF8(text[max(0, len(text)-tailBytes):], "")
}
