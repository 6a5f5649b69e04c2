package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// testFollowedLogs follows the logs of an app with two instances, one of which is restarted. Control plane,
// agent and processes are real.
func testFollowedLogs(t *testing.T, s *stack, app string, restart func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream, err := s.owner.logs.FollowLogs(ctx, &windlassv1.FollowLogsRequest{App: named(app), TailLines: 1000})
	require.NoError(t, err)
	defer stream.Close()
	seen := map[string]int{}
	read := func(done func() bool) {
		t.Helper()
		for !done() {
			require.True(t, stream.Receive(), "%v; lines by instance: %v", stream.Err(), seen)
			for _, l := range stream.Msg().GetLines() {
				require.NotContains(t, l.GetText(), "\n")
				require.WithinDuration(t, time.Now(), time.UnixMilli(l.GetAt()), 5*time.Minute)
				if strings.TrimSpace(l.GetText()) != "" {
					seen[l.GetInstance()]++
				}
			}
		}
	}
	read(func() bool { return len(seen) == 2 })
	before := 0
	for _, n := range seen {
		before += n
	}
	restart()
	read(func() bool {
		now := 0
		for _, n := range seen {
			now += n
		}
		return now > before
	})
}
