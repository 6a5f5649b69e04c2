package trail

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

type rows struct {
	all []model.Audit
	err error
}

func (r *rows) Update(_ context.Context, fn func(Tx) error) error {
	if r.err != nil {
		return r.err
	}
	return fn(r)
}

func (r *rows) InsertAudit(more ...model.Audit) error {
	r.all = append(r.all, more...)
	return nil
}

func newTrail(t *testing.T, r *rows) *Trail {
	t.Helper()
	trail, err := New(r, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	return trail
}

func TestTrail_WritesAFloodAsOneRowAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rows{}
		trail := newTrail(t, r)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- trail.Run(ctx) }()
		e := Entry{Source: "192.0.2.1", Procedure: "/a", Outcome: "unauthenticated"}
		for i := range 5_000 {
			trail.Note(e, int64(1_000+i))
		}
		trail.Note(Entry{WorkspaceID: "ws_1", Procedure: "/b", Outcome: Done}, 7)
		time.Sleep(every + time.Second)
		synctest.Wait()
		require.Len(t, r.all, 2)
		slices.SortFunc(r.all, func(a, b model.Audit) int { return int(b.At - a.At) })
		require.JSONEq(t, `{"outcome":"unauthenticated","count":5000,"until":5999}`, r.all[0].After)
		require.Equal(t, []any{"192.0.2.1", int64(1_000), ""}, []any{r.all[0].Source, r.all[0].At, r.all[0].WorkspaceID})
		require.Equal(t, "ws_1", r.all[1].WorkspaceID)

		trail.Note(e, 1)
		cancel()
		require.NoError(t, <-done)
		require.Len(t, r.all, 3, "the last minute is written when the process stops")
	})
}

func TestTrail_HasBoundedMemory(t *testing.T) {
	r := &rows{}
	trail := newTrail(t, r)
	trail.most = 10
	for i := range 1_000 {
		trail.Note(Entry{Source: fmt.Sprint(i), Procedure: "/a", Outcome: "unauthenticated"}, 1)
	}
	trail.write(t.Context())
	require.Len(t, r.all, 11)
	require.True(t, slices.ContainsFunc(r.all, func(a model.Audit) bool {
		return a.Source == Elsewhere && a.After == `{"outcome":"unauthenticated","count":990,"until":1}`
	}))
	r.err = errors.New("away")
	trail.Note(Entry{}, 1)
	trail.write(t.Context())
	require.InDelta(t, 1, testutil.ToFloat64(trail.dropped), 0)
	var none *Trail
	none.Note(Entry{}, 1)
}
