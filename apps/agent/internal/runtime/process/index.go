package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"syscall"
	"time"
)

// An instance's output has an index. With it, a reader finds its place again after a rotation, and
// learns how many lines it missed and when a line was written.
//
// The index is a file of records of equal size, in order. A position in the output is the number of
// bytes before it since the instance's first start, including bytes that are no longer stored. Each
// record identifies its output file by the inode, because the names of these files change. The
// records of an output file are dropped before the file. So when an inode is used again, no record
// of its previous file is left.

const (
	indexFile = "output.index"
	// A record is due when indexTime has passed, or indexBytes were written, since the last record.
	indexTime  = 100 * time.Millisecond
	indexBytes = 64 << 10
	recordSize = 5 * 8
)

// mark is one record of an index.
type mark struct {
	// offset is the position. lines is the number of line breaks before it.
	offset, lines int64
	// at is the time when the output after the position was written, in unix ms.
	at int64
	// base is the position of the beginning of the file with this inode.
	base  int64
	inode int64
}

func (m mark) encode() []byte {
	b := make([]byte, 0, recordSize)
	for _, v := range []int64{m.offset, m.lines, m.at, m.base, m.inode} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func decodeMark(b []byte) mark {
	v := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[i*8:])) }
	return mark{offset: v(0), lines: v(1), at: v(2), base: v(3), inode: v(4)}
}

// index reads the records of an output.
type index struct {
	f *os.File
	n int
}

// openIndex opens the index. If there is no file, the index has no records.
func openIndex(dir string) (*index, error) {
	f, err := os.Open(filepath.Join(dir, indexFile))
	if os.IsNotExist(err) {
		return &index{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open index of output: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open index of output: %w", err), f.Close())
	}
	return &index{f: f, n: int(st.Size() / recordSize)}, nil
}

func (x *index) close() {
	if x.f != nil {
		_ = x.f.Close()
	}
}

func (x *index) markAt(i int) (mark, error) {
	b := make([]byte, recordSize)
	if _, err := x.f.ReadAt(b, int64(i)*recordSize); err != nil {
		return mark{}, fmt.Errorf("read index of output: %w", err)
	}
	return decodeMark(b), nil
}

// lastBefore returns the number of the last record for which before returns true, or -1 if there is none.
// before must return true for the first records and false for all later ones.
func (x *index) lastBefore(before func(mark) bool) (i int, err error) {
	i = sort.Search(x.n, func(i int) bool {
		m, e := x.markAt(i)
		err = errors.Join(err, e)
		return e != nil || !before(m)
	})
	return i - 1, err
}

// firstAndLast returns the first and the last record.
func (x *index) firstAndLast() (first, last mark, err error) {
	if x.n == 0 {
		return first, last, nil
	}
	if first, err = x.markAt(0); err != nil {
		return first, last, err
	}
	last, err = x.markAt(x.n - 1)
	return first, last, err
}

// marksBetween returns the records from number i on whose positions are before end.
func (x *index) marksBetween(i int, end int64) ([]mark, error) {
	var out []mark
	for i = max(i, 0); i < x.n; i++ {
		m, err := x.markAt(i)
		if err != nil {
			return nil, err
		}
		if m.offset >= end {
			break
		}
		out = append(out, m)
	}
	return out, nil
}

// indexer writes the index of an output. If it cannot write a record because the disk is full,
// times and counts are less exact. No instance waits for it.
type indexer struct {
	dir string
	f   *os.File
	// here is the present end of the output. marked is the last record.
	here, marked mark
	// within means that the output ends within a line.
	within bool
}

// resumeFile continues the index for the current output file, which has size bytes.
func (x *indexer) resumeFile(current *os.File, size int64, now time.Time) error {
	old, err := openIndex(x.dir)
	if err != nil {
		return err
	}
	_, last, err := old.firstAndLast()
	old.close()
	if err != nil {
		return err
	}
	inode, err := inodeOf(current)
	if err != nil {
		return err
	}
	if x.f, err = os.OpenFile(filepath.Join(x.dir, indexFile), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return fmt.Errorf("open index of output: %w", err)
	}
	// A killed shim may have left part of a record.
	if err := x.f.Truncate(int64(old.n) * recordSize); err != nil {
		return fmt.Errorf("open index of output: %w", err)
	}
	before := filepath.Join(x.dir, outputFile+".1")
	switch {
	case last.inode == inode:
		lines, err := countLines(filepath.Join(x.dir, outputFile), last.offset-last.base)
		if err != nil {
			return err
		}
		x.here = mark{base: last.base, inode: inode, offset: last.base + size, lines: last.lines + lines}
	case old.n > 0:
		// The shim was killed during a rotation. The records are about the file that is the older
		// part now.
		st, err := os.Stat(before)
		if err != nil {
			return fmt.Errorf("open index of output: %w", err)
		}
		lines, err := countLines(before, last.offset-last.base)
		if err != nil {
			return err
		}
		base := last.base + st.Size()
		x.here = mark{base: base, inode: inode, offset: base + size, lines: last.lines + lines}
	default:
		x.here = mark{inode: inode, offset: size}
		if x.here.lines, err = countLines(filepath.Join(x.dir, outputFile), 0); err != nil {
			return err
		}
	}
	x.within = false // a record within a line only says when the rest of the line was written
	x.put(now)
	return nil
}

// put writes a record for the present end of the output.
func (x *indexer) put(now time.Time) {
	x.here.at = now.UnixMilli()
	x.marked = x.here
	if x.f != nil {
		_, _ = x.f.Write(x.here.encode())
	}
}

// noteWritten records that b was appended to the output.
func (x *indexer) noteWritten(b []byte, now time.Time) {
	if due := now.UnixMilli()-x.marked.at >= indexTime.Milliseconds() || x.here.offset-x.marked.offset >= indexBytes; due && !x.within {
		x.put(now)
	}
	x.here.offset += int64(len(b))
	x.here.lines += countBreaks(b)
	x.within = len(b) > 0 && b[len(b)-1] != '\n'
}

// dropOlder drops the records of all files except the current one, before a rotation.
func (x *indexer) dropOlder() {
	if x.f != nil {
		_ = x.f.Close()
		x.f = nil
	}
	old, err := openIndex(x.dir)
	if err != nil {
		return
	}
	defer old.close()
	from, err := old.lastBefore(func(m mark) bool { return m.base < x.here.base })
	if err != nil || old.n == 0 {
		return
	}
	path := filepath.Join(x.dir, indexFile)
	keep := make([]byte, (old.n-from-1)*recordSize)
	if _, err := old.f.ReadAt(keep, int64(from+1)*recordSize); err != nil && !errors.Is(err, io.EOF) {
		return
	}
	if os.WriteFile(path+".new", keep, 0o600) != nil || os.Rename(path+".new", path) != nil {
		// Without an index, positions are not known, which is better than wrong positions.
		_ = os.Remove(path)
	}
}

// rotateFile continues with a new output file.
func (x *indexer) rotateFile(current *os.File, now time.Time) {
	inode, err := inodeOf(current)
	if err != nil {
		return
	}
	x.here.base, x.here.inode = x.here.offset, inode
	if x.f, err = os.OpenFile(filepath.Join(x.dir, indexFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		x.f = nil
	}
	x.put(now)
}

func (x *indexer) close() {
	if x.f != nil {
		_ = x.f.Close()
		x.f = nil
	}
}

func inodeOf(f *os.File) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("look at output: %w", err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("look at output: this system has no inodes")
	}
	return int64(sys.Ino), nil
}

// countLines counts the line breaks of a file from an offset on.
func countLines(path string, from int64) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("count lines of output: %w", err)
	}
	defer func() { _ = f.Close() }()
	return countBreaksIn(io.NewSectionReader(f, from, 1<<62))
}

func countBreaksIn(r io.Reader) (lines int64, err error) {
	b := make([]byte, 64<<10)
	for {
		n, err := r.Read(b)
		lines += countBreaks(b[:n])
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return lines, fmt.Errorf("count lines of output: %w", err)
		}
	}
}
