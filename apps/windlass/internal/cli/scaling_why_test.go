package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// historyServer is a control plane with a long history: one decision an hour, alternately in two regions, and
// 99 other entries between two decisions.
type historyServer struct {
	windlassv1connect.UnimplementedHistoryServiceHandler
	// bounds reports whether it uses the times of a request.
	bounds   bool
	terminal bool
	now      time.Time
	entries  int
	calls    []*windlassv1.ListHistoryRequest
	// whys are the reasons of the first decisions, all in one region.
	whys []string
}

func (c *historyServer) ListHistory(_ context.Context, req *windlassv1.ListHistoryRequest) (*windlassv1.ListHistoryResponse, error) {
	c.calls = append(c.calls, req)
	from, _ := strconv.Atoi(req.GetPage().GetToken())
	res := &windlassv1.ListHistoryResponse{Page: &windlassv1.PageResponse{}}
	for i := from; i < c.entries; i++ {
		h := &windlassv1.HistoryEntry{At: c.now.Add(-time.Duration(i) * 36 * time.Second).UnixMilli(), What: "Drift"}
		if i%100 == 0 {
			h.What, h.Why, h.Region = "ScalingDecided", fmt.Sprintf("decision %d", i/100), []string{"eu", "us"}[i/100%2]
		}
		if i%100 == 0 && i/100 < len(c.whys) {
			h.Why, h.Region = c.whys[i/100], "eu"
		}
		if c.bounds && (h.GetAt() > req.GetUntil() || h.GetAt() < req.GetSince()) {
			continue
		}
		if res.Entries = append(res.Entries, h); len(res.GetEntries()) == int(req.GetPage().GetSize()) {
			res.Page.Next = strconv.Itoa(i + 1)
			break
		}
	}
	return res, nil
}

func (c *historyServer) windlass(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(windlassv1connect.NewHistoryServiceHandler(c))
	server := httptest.NewServer(mux)
	defer server.Close()
	c.calls = nil
	var out, info bytes.Buffer
	env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir()}
	root := New(Config{Stdout: &out, Stderr: &info, IsTerminal: func(io.Writer) bool { return c.terminal }, Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client()})
	root.SetArgs(append([]string{"scaling", "why", "chat"}, args...))
	err = root.ExecuteContext(t.Context())
	return out.String(), info.String(), err
}

func TestScalingWhy_ReadsNoMoreThanItShows(t *testing.T) {
	// Two months of history.
	c := &historyServer{now: time.Now().Truncate(time.Second), entries: 150_000}
	decisions := func(out string) int { return strings.Count(out, "ScalingDecided") }
	for _, c.bounds = range []bool{true, false} {
		out, _, err := c.windlass(t, "--limit", "3")
		require.NoError(t, err)
		require.Equal(t, 3, decisions(out))
		require.Len(t, c.calls, 1)
		require.Equal(t, 7*24*time.Hour, time.Duration(c.calls[0].GetUntil()-c.calls[0].GetSince())*time.Millisecond)

		out, _, err = c.windlass(t, "--limit", "0", "--since", "48h")
		require.NoError(t, err)
		require.InDelta(t, 48, decisions(out), 1)
		require.LessOrEqual(t, len(c.calls), 11, "4,800 entries in pages of 500")
	}

	// The last decision before the time is in force, in each region.
	c.bounds = true
	at := c.now.Add(-1000*time.Hour - time.Minute)
	out, _, err := c.windlass(t, "--at", at.Format(time.RFC3339), "--since", "4h")
	require.NoError(t, err)
	require.Equal(t, 2, decisions(out), out)
	require.Contains(t, out, "decision 1001")
	require.Contains(t, out, "decision 1002")
	require.Len(t, c.calls, 1)

	_, said, err := c.windlass(t, "--since", "1s", "--at", at.Format(time.RFC3339))
	require.NoError(t, err)
	require.Contains(t, said, "look further back with --since")
	_, _, err = c.windlass(t, "--since", "2000000h")
	require.NoError(t, err)
	require.Zero(t, c.calls[0].GetSince(), "no time before 1970")
	_, _, err = c.windlass(t, "--since", "-1h")
	require.ErrorContains(t, err, "--since=-1h0m0s: use a time above 0")
}

func TestScalingWhy_CutsReasonsOnlyOnATerminal(t *testing.T) {
	long := strings.Repeat("because of the queue, ", 10) + "and\nof the last line"
	c := &historyServer{now: time.Now().Truncate(time.Second), entries: 1, bounds: true, whys: []string{long}}
	out, _, err := c.windlass(t)
	require.NoError(t, err)
	require.Contains(t, out, strings.ReplaceAll(long, "\n", " "))

	c.terminal = true
	out, _, err = c.windlass(t)
	require.NoError(t, err)
	require.Contains(t, out, "because of the queue, ")
	require.NotContains(t, out, "the last line")
}
