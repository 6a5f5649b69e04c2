package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

// lineAge is how long a reader waits for the end of a line.
const lineAge = time.Second

// kept is the stored part of an instance's output: one or two files, without a gap between them.
type kept struct {
	index *index
	parts []part
}

// part is one output file. Its first byte has the position base.
type part struct {
	f          *os.File
	base, size int64
	changed    time.Time
}

// openKept opens the files before the index, because an open file keeps its inode; see index.go.
func openKept(dir string) (k *kept, err error) {
	k = &kept{}
	defer func() {
		if err != nil {
			k.close()
		}
	}()
	path := filepath.Join(dir, outputFile)
	var found []*os.File
	for _, p := range []string{path, path + ".1"} {
		f, err := os.Open(p)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			closeAll(found)
			return k, fmt.Errorf("read output: %w", err)
		}
		found = append(found, f)
	}
	if k.index, err = openIndex(dir); err != nil {
		closeAll(found)
		return k, err
	}
	first, last, err := k.index.firstAndLast()
	if err != nil {
		closeAll(found)
		return k, err
	}
	for _, f := range found {
		st, err := f.Stat()
		if err != nil {
			closeAll(found)
			return k, fmt.Errorf("read output: %w", err)
		}
		inode, err := inodeOf(f)
		if err != nil {
			closeAll(found)
			return k, err
		}
		p := part{f: f, size: st.Size(), changed: st.ModTime()}
		switch {
		case k.index.n == 0 && f == found[0]:
			// The instance was started by an agent that wrote no index. Positions count from the
			// last rotation.
		case k.index.n > 0 && inode == last.inode:
			p.base = last.base
		case k.index.n > 0 && inode == first.inode:
			p.base = first.base
		default:
			_ = f.Close()
			continue
		}
		k.parts = append([]part{p}, k.parts...)
	}
	// Both parts are the same file if it was renamed in between. There is a gap if there were two
	// rotations.
	if n := len(k.parts); n == 2 && k.parts[0].base+k.parts[0].size != k.parts[1].base {
		_ = k.parts[0].f.Close()
		k.parts = k.parts[1:]
	}
	return k, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func (k *kept) close() {
	if k.index != nil {
		k.index.close()
	}
	for _, p := range k.parts {
		_ = p.f.Close()
	}
}

func (k *kept) start() int64 {
	if len(k.parts) == 0 {
		return 0
	}
	return k.parts[0].base
}

func (k *kept) endPosition() int64 {
	if len(k.parts) == 0 {
		return 0
	}
	p := k.parts[len(k.parts)-1]
	return p.base + p.size
}

// readerOf returns a reader of the output between two positions.
func (k *kept) readerOf(from, to int64) io.Reader {
	var out []io.Reader
	for _, p := range k.parts {
		if begin, end := max(from, p.base), min(to, p.base+p.size); begin < end {
			out = append(out, io.NewSectionReader(p.f, begin-p.base, end-begin))
		}
	}
	return io.MultiReader(out...)
}

// linesBefore returns the number of line breaks before a stored position.
func (k *kept) linesBefore(position int64) (int64, error) {
	i, err := k.index.lastBefore(func(m mark) bool { return m.offset <= position })
	if err != nil {
		return 0, err
	}
	near := mark{offset: k.start()}
	if i >= 0 {
		if near, err = k.index.markAt(i); err != nil {
			return 0, err
		}
	}
	more, err := countBreaksIn(k.readerOf(near.offset, position))
	return near.lines + more, err
}

// positionSince returns the beginning of a line. All output before it is older than at.
func (k *kept) positionSince(at time.Time) (int64, error) {
	i, err := k.index.lastBefore(func(m mark) bool { return m.at < at.UnixMilli() })
	if err != nil || i < 0 {
		return k.start(), err
	}
	m, err := k.index.markAt(i)
	return max(m.offset, k.start()), err
}

// tailPosition returns the position where the last n lines begin. It looks at limit bytes at most.
func (k *kept) tailPosition(n, limit int) (int64, error) {
	from := max(k.start(), k.endPosition()-int64(limit))
	b, err := io.ReadAll(k.readerOf(from, k.endPosition()))
	if err != nil {
		return 0, fmt.Errorf("read output: %w", err)
	}
	return k.endPosition() - int64(len(lastLines(b, n, limit))), nil
}

// begin returns the position where to read, and how many lines before it were lost.
func (k *kept) begin(q runtime.LogQuery) (at runtime.LogPosition, lost int64, err error) {
	switch {
	case q.After != nil && q.After.Offset > k.endPosition():
		// The position belongs to another output: the instance was started again on a host that
		// lost its disk, or its output has no index and was rotated.
		at.Offset = k.start()
	case q.After != nil:
		at = *q.After
	case q.Tail >= 0 && (q.Since.IsZero() || q.Tail > 0):
		at.Offset, err = k.tailPosition(q.Tail, q.Limit)
	default:
		at.Offset = k.start()
	}
	if err != nil {
		return at, 0, err
	}
	if !q.Since.IsZero() {
		since, err := k.positionSince(q.Since)
		if err != nil {
			return at, 0, err
		}
		at.Offset = max(at.Offset, since)
	}
	from := max(at.Offset, k.start(), k.endPosition()-int64(q.Limit))
	if q.After != nil && from == q.After.Offset {
		return *q.After, 0, nil
	}
	if from > at.Offset && from > k.start() {
		// A page must not begin within a line.
		if from, err = k.lineFrom(from); err != nil {
			return at, 0, err
		}
	}
	skipped := from > at.Offset
	at = runtime.LogPosition{Offset: from}
	if at.Line, err = k.linesBefore(from); err != nil {
		return at, 0, err
	}
	if skipped && q.After != nil {
		lost = max(at.Line-q.After.Line, 0)
	}
	return at, lost, nil
}

// lineFrom returns the beginning of the next line, or the position itself if no line begins after
// it.
func (k *kept) lineFrom(position int64) (int64, error) {
	b, err := io.ReadAll(k.readerOf(position, k.endPosition()))
	if err != nil {
		return 0, fmt.Errorf("read output: %w", err)
	}
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return position + int64(i) + 1, nil
	}
	return position, nil
}

// readPage reads a page of an instance's output.
func readPage(dir string, q runtime.LogQuery, secrets *redact.Values, now time.Time) (page runtime.LogPage, err error) {
	k, err := openKept(dir)
	if err != nil {
		return page, err
	}
	defer k.close()
	at, lost, err := k.begin(q)
	if err != nil {
		return page, err
	}
	page.Next, page.Lost = at, lost
	if len(k.parts) == 0 {
		return page, nil
	}
	b, err := io.ReadAll(k.readerOf(at.Offset, k.endPosition()))
	if err != nil {
		return page, fmt.Errorf("read output: %w", err)
	}
	// The beginning of a line waits for the rest of the line, for a limited time.
	if whole := bytes.LastIndexByte(b, '\n') + 1; now.Sub(k.parts[len(k.parts)-1].changed) < lineAge && len(b)-whole < q.Limit/2 {
		b = b[:whole]
	}
	if len(b) == 0 {
		return page, nil
	}
	page.Next = runtime.LogPosition{Offset: at.Offset + int64(len(b)), Line: at.Line + countBreaks(b)}
	page.Lines, err = k.linesOf(b, at.Offset, secrets)
	if err != nil || q.Since.IsZero() {
		return page, err
	}
	for len(page.Lines) > 0 && page.Lines[0].At.Before(q.Since) {
		page.Lines = page.Lines[1:]
	}
	return page, nil
}

// linesOf splits output into lines with their times. The output begins at position.
func (k *kept) linesOf(b []byte, position int64, secrets *redact.Values) ([]runtime.LogLine, error) {
	i, err := k.index.lastBefore(func(m mark) bool { return m.offset <= position })
	if err != nil {
		return nil, err
	}
	marks, err := k.index.marksBetween(i, position+int64(len(b)))
	if err != nil {
		return nil, err
	}
	at := k.parts[0].changed
	var times []time.Time
	var ends []int64
	for rest := b; len(rest) > 0; {
		for len(marks) > 0 && marks[0].offset <= position {
			at, marks = time.UnixMilli(marks[0].at), marks[1:]
		}
		times = append(times, at)
		n := bytes.IndexByte(rest, '\n') + 1
		if n == 0 {
			n = len(rest)
		}
		rest, position = rest[n:], position+int64(n)
		ends = append(ends, position)
	}
	// The lines are blanked as one text, because a value may have several lines.
	texts := strings.Split(strings.TrimSuffix(secrets.Blank(string(b)), "\n"), "\n")
	out := make([]runtime.LogLine, len(texts))
	for i, t := range texts {
		n := min(i, len(times)-1)
		out[i] = runtime.LogLine{At: times[n], End: ends[n], Text: runtime.LogText(t)}
	}
	return out, nil
}

func countBreaks(b []byte) int64 { return int64(bytes.Count(b, []byte{'\n'})) }
