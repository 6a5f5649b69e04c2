package fleettest

import (
	"fmt"
	"hash"
	"hash/fnv"
	"time"
)

// trace is everything that could be seen of a fleet, in its order: messages, what
// was done to whom, what agents did. Two runs of a seed have the same.
type trace struct {
	begin time.Time
	keep  bool
	over  bool
	lines []string
	count int
	sum   hash.Hash64
}

func newTrace(keep bool) *trace {
	return &trace{begin: time.Now(), keep: keep, sum: fnv.New64a()}
}

// addf notes a line. Goroutines of a pinned fleet never run at the same time, and
// those of another have no use for a trace.
func (t *trace) addf(format string, args ...any) {
	if raced || t.over {
		return
	}
	line := fmt.Sprintf("%d ", time.Since(t.begin).Nanoseconds()) + fmt.Sprintf(format, args...)
	t.count++
	_, _ = t.sum.Write([]byte(line)) // never fails
	if t.keep {
		t.lines = append(t.lines, line)
	}
}

func (t *trace) String() string { return fmt.Sprintf("%016x of %d lines", t.sum.Sum64(), t.count) }

// bytesOf is a message in a line.
func bytesOf(data []byte) string {
	h := fnv.New32a()
	_, _ = h.Write(data) // never fails
	return fmt.Sprintf("%d bytes #%08x", len(data), h.Sum32())
}

// parts is where two traces part.
func (t *trace) parts(o *trace) string {
	for i := range t.lines {
		if i >= len(o.lines) || t.lines[i] != o.lines[i] {
			out := ""
			for _, line := range t.lines[max(0, i-8):i] {
				out += "  both    " + line + "\n"
			}
			for _, line := range t.lines[i:min(len(t.lines), i+6)] {
				out += "  first   " + line + "\n"
			}
			for _, line := range o.lines[min(i, len(o.lines)):min(len(o.lines), i+6)] {
				out += "  second  " + line + "\n"
			}
			return fmt.Sprintf("line %d:\n%s", i, out)
		}
	}
	return fmt.Sprintf("the second goes on after line %d", len(t.lines))
}
