package fleettest

import (
	"fmt"
	"hash"
	"hash/fnv"
	"time"
)

// trace has all observable events of a fleet, in their order: messages, faults, and actions of agents. Two
// runs with the same seed have the same trace.
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

// addf adds a line. It needs no lock, because goroutines of a pinned fleet never run at the same time, and
// other fleets have no trace.
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

// bytesOf returns a message as one line.
func bytesOf(data []byte) string {
	h := fnv.New32a()
	_, _ = h.Write(data) // never fails
	return fmt.Sprintf("%d bytes #%08x", len(data), h.Sum32())
}

// parts describes where two traces differ.
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
