package inbox

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// BenchmarkSnapshot stores a snapshot in an empty inbox. Without flushes, as in a test's fleet, it
// measures the cost of the file. With flushes, it also measures the disk.
func BenchmarkSnapshot(b *testing.B) {
	const items = 10_000
	all := make([]*agentv1.Item, items)
	for n := range all {
		all[n] = apply(fmt.Sprintf("dep_%012x", uint32(n)*2654435761), 1, int64(n+1))
	}
	for name, noSync := range map[string]bool{"flushed": false, "unflushed": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				in, err := Open(filepath.Join(b.TempDir(), "inbox.db"), noSync)
				require.NoError(b, err)
				b.StartTimer()
				_, err = in.Snapshot(begin(1, 1, items), all)
				require.NoError(b, err)
				b.StopTimer()
				require.NoError(b, in.Close())
				b.StartTimer()
			}
			b.ReportMetric(items*float64(b.N)/b.Elapsed().Seconds(), "items/s")
		})
	}
}
