package process

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/redact"
)

const aPage = 64 << 10

func pageOf(t *testing.T, dir string, q runtime.LogQuery) runtime.LogPage {
	t.Helper()
	page, err := readPage(dir, q, redact.New("hunter2hunter2"), time.Now())
	require.NoError(t, err)
	require.Less(t, textSize(page), q.Limit+1)
	return page
}

func textSize(p runtime.LogPage) (n int) {
	for _, l := range p.Lines {
		n += len(l.Text)
	}
	return n
}

func TestOutput_IsReadInPages(t *testing.T) {
	dir := t.TempDir()
	o, err := openOutput(dir, 4096)
	require.NoError(t, err)
	at := &runtime.LogPosition{}
	next, lost := 0, int64(0)
	read := func() {
		page := pageOf(t, dir, runtime.LogQuery{After: at, Limit: aPage})
		lost += page.Lost
		next += int(page.Lost)
		for _, l := range page.Lines {
			require.Equal(t, fmt.Sprintf("line %d", next), l.Text)
			require.WithinDuration(t, time.Now(), l.At, time.Minute)
			next++
		}
		at = &page.Next
		require.EqualValues(t, next, at.Line)
	}
	write := func(from, to int) {
		for i := from; i < to; i++ {
			_, err := fmt.Fprintf(o, "line %d\n", i)
			require.NoError(t, err)
		}
	}
	// If the reader keeps up, rotations lose nothing.
	for i := 0; i < 1000; i += 50 {
		write(i, i+50)
		read()
	}
	require.Equal(t, 1000, next)
	require.Zero(t, lost)

	// The shim's next run continues the index, even if part of a record was left.
	o.close()
	index, err := os.OpenFile(filepath.Join(dir, indexFile), os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	_, err = index.WriteString("torn")
	require.NoError(t, err)
	require.NoError(t, index.Close())
	o, err = openOutput(dir, 4096)
	require.NoError(t, err)
	defer o.close()
	write(1000, 1010)
	read()
	require.Equal(t, 1010, next)
	require.Zero(t, lost)

	// Lines that rotations have removed are counted.
	write(1010, 9000)
	read()
	require.Equal(t, 9000, next)
	require.Positive(t, lost)

	tail := pageOf(t, dir, runtime.LogQuery{Tail: 2, Limit: aPage})
	require.Len(t, tail.Lines, 2)
	require.Equal(t, "line 8999", tail.Lines[1].Text)
	require.Equal(t, *at, tail.Next)
	require.Equal(t, at.Offset, tail.Lines[1].End)
	require.Empty(t, pageOf(t, dir, runtime.LogQuery{Tail: 0, Limit: aPage}).Lines)
	require.Empty(t, pageOf(t, dir, runtime.LogQuery{Since: time.Now().Add(time.Hour), Tail: -1, Limit: aPage}).Lines)
	all := pageOf(t, dir, runtime.LogQuery{Tail: -1, Limit: aPage})
	require.Equal(t, "line 8999", all.Lines[len(all.Lines)-1].Text)

	// Values of secrets are blanked, and the beginning of a line waits for the rest of the line.
	_, err = o.Write([]byte("key hunter2hunter2\nhalf"))
	require.NoError(t, err)
	page := pageOf(t, dir, runtime.LogQuery{After: at, Limit: aPage})
	require.Len(t, page.Lines, 1)
	require.Equal(t, "key ***", page.Lines[0].Text)
}

// An instance may write 50 MB in a second. A page of this output is not larger than any other, and
// the lines that it leaves out are counted.
func TestOutput_IsReadInPagesOfAFlood(t *testing.T) {
	dir := t.TempDir()
	o, err := openOutput(dir, 8<<20)
	require.NoError(t, err)
	defer o.close()
	chunk := make([]byte, 0, 32<<10)
	for len(chunk) < 32<<10-64 {
		chunk = append(chunk, "a line of a flood, which is 40 bytes ok\n"...)
	}
	per := int64(len(chunk) / 40)
	at := &runtime.LogPosition{}
	var written, got int64
	for i := range 50 << 20 / len(chunk) {
		_, err := o.Write(chunk)
		require.NoError(t, err)
		written += per
		if i%100 == 99 {
			page := pageOf(t, dir, runtime.LogQuery{After: at, Limit: aPage})
			got += page.Lost + int64(len(page.Lines))
			require.Equal(t, written, got, "each line is returned or counted")
			at = &page.Next
		}
	}
	st, err := os.Stat(filepath.Join(dir, indexFile))
	require.NoError(t, err)
	require.Less(t, st.Size(), int64(64<<10), "the size of the index is limited, like the output's")
}
