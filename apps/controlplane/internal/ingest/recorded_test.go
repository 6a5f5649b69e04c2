package ingest_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestReport_OfAnEarlierAgentIsAccepted(t *testing.T) {
	recordings, err := filepath.Glob("testdata/recorded/reports-*.binpb")
	require.NoError(t, err)
	require.NotEmpty(t, recordings)
	for _, path := range recordings {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := os.Open(path)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, f.Close()) })
			h := setup(t)
			in := bufio.NewReader(f)
			for {
				req := &agentv1.ReportRequest{}
				err := protodelim.UnmarshalFrom(in, req)
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				require.NoError(t, h.report(east, req))
			}
			for id, status := range map[string]windlassv1.InstanceStatus{
				"ins_1": windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED,
				"ins_2": windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING,
				"ins_3": windlassv1.InstanceStatus_INSTANCE_STATUS_READY,
			} {
				i, ok := h.instance(id)
				require.True(t, ok, id)
				require.Equal(t, status, i.Status, id)
			}
			require.EqualValues(t, 1, h.observed().Ready)
			require.EqualValues(t, 7, h.row().ReceivedRevision)
		})
	}
}
