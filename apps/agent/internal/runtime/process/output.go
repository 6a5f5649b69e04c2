package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

const (
	// tailLines and tailBytes are the maximum size of the last output that goes into a message, in
	// lines and in bytes.
	tailLines = 5
	tailBytes = 2048
	// maxLogs is the maximum size of the result of Logs, in bytes.
	maxLogs = 1 << 20
)

// output is an instance's output. It is on disk in two files of at most half its limit each, and
// its end is also in memory.
type output struct {
	dir  string
	half int64

	mu   sync.Mutex
	f    *os.File
	size int64
	tail []byte
	// index is nil if it cannot be written.
	index *indexer
}

func openOutput(dir string, limit int64) (*output, error) {
	o := &output{dir: dir, half: max(limit/2, 1024)}
	if err := o.open(); err != nil {
		return nil, err
	}
	o.index = &indexer{dir: dir}
	if err := o.index.resumeFile(o.f, o.size, time.Now()); err != nil {
		// An index that misses a file would have wrong positions.
		o.index.close()
		o.index = nil
		_ = os.Remove(filepath.Join(dir, indexFile))
	}
	return o, nil
}

func (o *output) open() error {
	f, err := os.OpenFile(filepath.Join(o.dir, outputFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open output: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("open output: %w", err)
	}
	o.f, o.size = f, st.Size()
	return nil
}

// Write never returns an error, because a full disk must not block the instance.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tail = append(o.tail, b...)
	if n := len(o.tail) - tailBytes; n > 0 {
		o.tail = append(o.tail[:0], o.tail[n:]...)
	}
	if o.size >= o.half {
		o.rotateFiles()
	}
	if o.f != nil {
		n, _ := o.f.Write(b)
		o.size += int64(n)
		if o.index != nil {
			o.index.noteWritten(b[:n], time.Now())
		}
	}
	return len(b), nil
}

func (o *output) rotateFiles() {
	if o.f != nil {
		_ = o.f.Close()
		o.f = nil
	}
	if o.index != nil {
		o.index.dropOlder()
	}
	path := filepath.Join(o.dir, outputFile)
	_ = os.Rename(path, path+".1")
	// Without a file, the next write tries again.
	if o.open() == nil && o.index != nil {
		o.index.rotateFile(o.f, time.Now())
	}
}

// newestLines returns the last lines of this attempt's output, with the secrets blanked. The output in
// memory may begin inside a secret.
func (o *output) newestLines(secrets *redact.Values) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return messageLines(secrets.Blank(string(o.tail)))
}

// messageLines returns the last lines of a text, in the form for a message.
func messageLines(text string) []string {
	text = strings.ToValidUTF8(text, "?")
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	lines = lines[max(len(lines)-tailLines, 0):]
	for i, l := range lines {
		lines[i] = strings.Map(func(r rune) rune {
			if r < ' ' {
				return ' '
			}
			return r
		}, l)
	}
	return lines
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.f != nil {
		_ = o.f.Close()
		o.f = nil
	}
	if o.index != nil {
		o.index.close()
	}
}

// readOutput returns the last n lines of an instance's output.
func readOutput(dir string, n int) ([]byte, error) {
	path := filepath.Join(dir, outputFile)
	var all []byte
	for _, p := range []string{path + ".1", path} {
		b, err := readEnd(p, maxLogs)
		if err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("read output: %w", err)
		}
		all = append(all, b...)
	}
	return lastLines(all, n, maxLogs), nil
}

func readEnd(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(st.Size(), limit))
	got, err := f.ReadAt(b, st.Size()-int64(len(b)))
	if got == len(b) {
		err = nil
	}
	return b[:got], err
}

// lastLines returns the last n lines of b, at most limit bytes of them. The result begins with a
// whole line.
func lastLines(b []byte, n, limit int) []byte {
	if n <= 0 {
		return nil
	}
	if over := len(b) - limit; over > 0 {
		b = b[over:]
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	end := len(b)
	if end > 0 && b[end-1] == '\n' {
		end--
	}
	for i := end - 1; i >= 0; i-- {
		if b[i] == '\n' {
			if n--; n == 0 {
				return b[i+1:]
			}
		}
	}
	return b
}
