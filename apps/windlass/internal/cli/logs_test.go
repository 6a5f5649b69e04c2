package cli

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// brokenLogServer sends a line and breaks the stream. It answers the next request with the next line.
type brokenLogServer struct {
	requests []*windlassv1.FollowLogsRequest
}

func (b *brokenLogServer) FollowLogs(ctx context.Context, req *windlassv1.FollowLogsRequest, out *connect.ServerStream[windlassv1.FollowLogsResponse]) error {
	b.requests = append(b.requests, req)
	n := int64(len(b.requests))
	res := &windlassv1.FollowLogsResponse{
		Lines:     []*windlassv1.LogLine{{Instance: "ins_1", At: 1_000 * n, Text: strings.Repeat("again ", int(n-1)) + "line"}},
		Positions: []*windlassv1.InstancePosition{{Instance: "ins_1", Position: &windlassv1.LogPosition{Offset: 10 * n, Line: n}}},
	}
	if n == 1 {
		res.Notes = []*windlassv1.LogNote{{
			Kind: windlassv1.LogNote_KIND_BEGAN, Instance: "ins_1",
			About: &windlassv1.Instance{Id: "ins_1", Version: 3, Region: "eu", Role: "main", Slot: 1},
		}}
	}
	if err := out.Send(res); err != nil {
		return err
	}
	if n == 1 {
		return connect.NewError(connect.CodeUnavailable, io.ErrUnexpectedEOF)
	}
	if err := out.Send(&windlassv1.FollowLogsResponse{Notes: []*windlassv1.LogNote{
		{Kind: windlassv1.LogNote_KIND_LOST, Instance: "ins_1", Lines: 7, Message: "7 lines are missing"},
	}}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func TestLogs_FollowResumesWhereABrokenStreamEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	service := &brokenLogServer{}
	var stdout, stderr bytes.Buffer
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewLogServiceHandler(service))
	server := httptest.NewServer(mux)
	defer server.Close()
	env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir()}
	lost := &textWaiter{to: &stderr, text: "7 lines are missing", found: cancel}
	root := New(Config{
		Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: lost, IsTerminal: func(io.Writer) bool { return false },
		Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client(),
	})
	root.SetArgs([]string{"logs", "-f", "echo", "--timestamps", "--version", "v3", "--tail", "5", "--config", filepath.Join(env["HOME"], "config.yaml")})
	err := root.ExecuteContext(ctx)
	var exit *ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, codeInterrupted, exit.Code)

	require.Equal(t, `v3 eu main/0.1 | 1970-01-01T00:00:01.000Z line
v3 eu main/0.1 | 1970-01-01T00:00:02.000Z again line
`, stdout.String())
	require.Contains(t, stderr.String(), "! v3 eu main/0.1: 7 lines are missing")
	require.Len(t, service.requests, 2)
	require.Equal(t, "default/production/echo", service.requests[0].GetApp())
	require.EqualValues(t, 3, service.requests[0].GetVersion())
	require.EqualValues(t, 5, service.requests[0].GetTailLines())
	require.Empty(t, service.requests[0].GetPositions())
	require.Len(t, service.requests[1].GetPositions(), 1)
	require.EqualValues(t, 10, service.requests[1].GetPositions()[0].GetPosition().GetOffset())
}

// textWaiter is a writer that calls found when the text has been written.
type textWaiter struct {
	to    *bytes.Buffer
	text  string
	found func()
}

func (a *textWaiter) Write(p []byte) (int, error) {
	n, err := a.to.Write(p)
	if strings.Contains(a.to.String(), a.text) {
		a.found()
	}
	return n, err
}
