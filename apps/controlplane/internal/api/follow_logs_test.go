package api_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// followable announces for all regions that their agents can follow logs.
func (h *harness) followable() {
	h.update(func(tx store.Tx) error {
		for _, id := range h.regions {
			_, _, err := tx.StartSession(id, "session-"+id, 60_000, model.Region{AgentFeatures: []string{agentv1.Feature_FEATURE_FOLLOW_LOGS.String()}})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// answerLogs answers reads of logs: each instance has the lines 0, 1, 2 and so on, written lines in total. If written
// is negative, no agent answers.
func (h *harness) answerLogs(written *atomic.Int64) {
	h.agents.answer = func(_ string, req *agentv1.Request) ([]byte, error) {
		if written.Load() < 0 {
			return nil, model.ErrAgentUnreachable
		}
		res := &agentv1.FollowResponse{}
		for _, in := range req.GetFollow().GetInstances() {
			n := written.Load()
			log := &agentv1.InstanceLog{InstanceId: in.GetInstanceId(), Next: &windlassv1.LogPosition{Offset: n, Line: n}}
			from := in.GetAfter().GetOffset()
			if in.GetAfter() == nil && in.GetTailLines() >= 0 {
				from = max(0, n-int64(in.GetTailLines()))
			}
			for i := from; i < n; i++ {
				log.Lines = append(log.Lines, &windlassv1.LogLine{At: i, Offset: i + 1, Text: fmt.Sprintf("line %d", i)})
			}
			res.Logs = append(res.Logs, log)
		}
		return proto.Marshal(res)
	}
}

func TestFollowLogs(t *testing.T) {
	w := setup(t)
	ctx := t.Context()
	made := w.deploy("chat")
	w.settle("chat")
	us, eu := ident.New("ins"), ident.New("ins")
	w.putInstance(made, us, "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
	w.putInstance(made, eu, "eu-west-1", windlassv1.InstanceStatus_INSTANCE_STATUS_READY)
	var written atomic.Int64
	written.Store(3)
	w.answerLogs(&written)
	once := func(req *windlassv1.FollowLogsRequest) *windlassv1.FollowLogsResponse {
		t.Helper()
		req.Once = true
		stream, err := w.logs(w.viewer).FollowLogs(ctx, req)
		require.NoError(t, err)
		defer stream.Close()
		require.True(t, stream.Receive(), "%v", stream.Err())
		got := proto.CloneOf(stream.Msg())
		require.False(t, stream.Receive())
		require.NoError(t, stream.Err())
		return got
	}
	said := func(r *windlassv1.FollowLogsResponse) string {
		var out []string
		for _, l := range r.GetLines() {
			out = append(out, strings.TrimPrefix(l.GetText(), "line "))
		}
		return strings.Join(out, " ")
	}

	// With agents of an earlier release, the stream has a note and ends.
	res := once(&windlassv1.FollowLogsRequest{App: made.GetAppId(), TailLines: 5})
	require.Empty(t, res.GetLines())
	require.Len(t, res.GetNotes(), 2)
	for _, n := range res.GetNotes() {
		require.Equal(t, windlassv1.LogNote_KIND_UNSUPPORTED, n.GetKind())
		require.Contains(t, n.GetMessage(), "update it")
	}

	w.followable()
	require.Equal(t, "0 0 1 1 2 2", said(once(&windlassv1.FollowLogsRequest{App: made.GetAppId(), TailLines: 5})), "lines of all instances are sorted by time")
	require.Equal(t, "1 2", said(once(&windlassv1.FollowLogsRequest{App: made.GetAppId(), TailLines: 2, Region: "eu-west-1"})))
	require.Equal(t, "2 2", said(once(&windlassv1.FollowLogsRequest{App: made.GetAppId(), TailLines: 5, Grep: "[2-9]$"})))
	require.Empty(t, said(once(&windlassv1.FollowLogsRequest{App: made.GetAppId(), TailLines: 5, Version: 7})))
	require.Equal(t, "0 1 2", said(once(&windlassv1.FollowLogsRequest{Instance: us, TailLines: 5})))
	require.Equal(t, "2", said(once(&windlassv1.FollowLogsRequest{Instance: us, Positions: []*windlassv1.InstancePosition{
		{Instance: us, Position: &windlassv1.LogPosition{Offset: 2, Line: 2}},
	}})), "the stream continues at the positions of an earlier stream")

	for req, field := range map[*windlassv1.FollowLogsRequest]string{
		{}:                                "app",
		{App: "a", Instance: us}:          "app",
		{App: made.GetAppId(), Grep: "("}: "grep",
	} {
		stream, err := w.logs(w.viewer).FollowLogs(ctx, req)
		require.NoError(t, err)
		require.False(t, stream.Receive())
		refused(t, stream.Err(), connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, field)
	}
	for _, req := range []*windlassv1.FollowLogsRequest{{Instance: us}, {App: made.GetAppId()}} {
		stream, err := w.logs(w.rival).FollowLogs(ctx, req)
		require.NoError(t, err)
		require.False(t, stream.Receive())
		require.Equal(t, connect.CodeNotFound, connect.CodeOf(stream.Err()), "of another workspace")
	}

	// Following: new lines arrive, a replacement is read from its first line, and a note says that an instance is
	// gone.
	stream, err := w.logs(w.viewer).FollowLogs(ctx, &windlassv1.FollowLogsRequest{App: made.GetAppId(), Region: "us-east-1"})
	require.NoError(t, err)
	defer stream.Close()
	require.True(t, stream.Receive(), "%v", stream.Err())
	require.Empty(t, stream.Msg().GetLines())
	await := func(done func(*windlassv1.FollowLogsResponse) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); time.Now().Before(end) && stream.Receive(); {
			if done(stream.Msg()) {
				return
			}
		}
		require.Fail(t, "the stream ended too early", "%v", stream.Err())
	}
	written.Add(1)
	await(func(r *windlassv1.FollowLogsResponse) bool { return said(r) == "3" })
	again := ident.New("ins")
	w.putInstance(made, again, "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING)
	await(func(r *windlassv1.FollowLogsResponse) bool { return said(r) == "0 1 2 3" })
	w.putInstance(made, us, "us-east-1", windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED)
	await(func(r *windlassv1.FollowLogsResponse) bool {
		return len(r.GetNotes()) > 0 && r.GetNotes()[0].GetKind() == windlassv1.LogNote_KIND_ENDED && r.GetNotes()[0].GetInstance() == us
	})
	written.Store(-1)
	await(func(r *windlassv1.FollowLogsResponse) bool {
		return len(r.GetNotes()) > 0 && r.GetNotes()[0].GetKind() == windlassv1.LogNote_KIND_UNREACHABLE
	})
}
