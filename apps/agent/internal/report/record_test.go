//go:build record

package report

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"
)

// TestRecord records the reports of this version's agent. Tests of later control planes check that
// they still accept these reports:
//
//	go test -tags record -run TestRecord ./apps/agent/internal/report
//
// Each release adds a recording. Recordings are never changed.
func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1", "ins_2", "ins_3")
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		all := p.take()
		p.set(running, "ins_2")
		p.set(0, "ins_1")
		time.Sleep(time.Minute)
		all = append(all, p.take()...)

		path := filepath.Join("..", "..", "..", "controlplane", "internal", "ingest", "testdata", "recorded", "reports-1.binpb")
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		f, err := os.Create(path)
		require.NoError(t, err)
		for _, req := range all {
			_, err := protodelim.MarshalTo(f, req)
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
	})
}
