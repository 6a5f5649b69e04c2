package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
)

// The number of allocations for the head of an answer does not depend on its number of fields, even if Connection
// lists names.
func TestHead_WithManyFields(t *testing.T) {
	made := map[int]float64{}
	for _, fields := range []int{8, http1.MaxResponseFields - 1} {
		d := &direct{out: make([]byte, 0, 64<<10)}
		d.answer.Reset()
		_, err := d.answer.Parse([]byte("HTTP/1.1 200 OK\r\nConnection: X-Secret, x-nothing\r\n" + strings.Repeat("X-Secret: a\r\n", fields-1) + "\r\n"))
		require.NoError(t, err)
		made[fields] = testing.AllocsPerRun(10, d.appendHead)
		require.Equal(t, "HTTP/1.1 200 OK\r\n", string(d.out))
	}
	require.Equal(t, made[8], made[http1.MaxResponseFields-1])
}

// BenchmarkHead shows that the time for a field of an answer does not depend on the number of fields.
func BenchmarkHead(b *testing.B) {
	for _, fields := range []int{8, 64, http1.MaxResponseFields - 1} {
		b.Run(fmt.Sprintf("fields=%d", fields), func(b *testing.B) {
			d := &direct{out: make([]byte, 0, 64<<10)}
			d.answer.Reset()
			if _, err := d.answer.Parse([]byte("HTTP/1.1 200 OK\r\nConnection: x-nothing\r\n" + strings.Repeat("A: b\r\n", fields) + "\r\n")); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				d.appendHead()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*fields), "ns/field")
		})
	}
}
