package report

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// addNotices adds notices to the observation.
func (h *harness) addNotices(seqs ...int64) {
	h.mu.Lock()
	for _, n := range seqs {
		h.notices = append(h.notices, runtime.Notice{
			Seq: n, Kind: agentv1.Notice_KIND_DRIFT, DeploymentID: "dep_1", Object: fmt.Sprint("Service ", n), Message: "gone", Times: 2, At: time.Now(),
		})
	}
	h.mu.Unlock()
	h.signal()
}

// noticedObjects returns the objects of the notices in the reports, in order.
func noticedObjects(reports []*agentv1.ReportRequest) (out []string) {
	for _, r := range reports {
		for _, n := range r.Notices {
			out = append(out, n.Object)
		}
	}
	return out
}

func TestNotices_AreSentOnceOverSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		p.addNotices(1, 2)
		stop := p.run(Session{ID: "session-1", Epoch: 1, Fence: 1})
		got := p.take()
		require.Equal(t, []string{"Service 1", "Service 2"}, noticedObjects(got))
		first := got[len(got)-1].Notices[0]
		require.Equal(t, "dep_1", first.DeploymentId)
		require.EqualValues(t, 2, first.Times)
		require.Equal(t, agentv1.Notice_KIND_DRIFT, first.Kind)

		p.addNotices(3)
		time.Sleep(time.Second)
		require.Equal(t, []string{"Service 3"}, noticedObjects(p.take()))
		time.Sleep(time.Hour) // two inventories are sent in this time
		require.Empty(t, noticedObjects(p.take()))
		require.NoError(t, stop())

		stop = p.run(Session{ID: "session-1", Epoch: 1, Fence: 2})
		time.Sleep(time.Minute)
		require.Empty(t, noticedObjects(p.take()), "an inventory has states, but no events")
		p.addNotices(4)
		time.Sleep(time.Second)
		require.Equal(t, []string{"Service 4"}, noticedObjects(p.take()))
		require.NoError(t, stop())
	})
}

func TestNotice_UnansweredComesWithTheNextSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		over := make(chan error, 1)
		go func() { over <- p.rep.Run(t.Context(), Session{ID: "session-1", Epoch: 1, Fence: 1}) }()
		p.take()
		p.mu.Lock()
		p.answer = func(r *agentv1.ReportRequest) error {
			if len(r.Notices) > 0 {
				return connect.NewError(connect.CodeFailedPrecondition, errors.New("the session is over"))
			}
			return nil
		}
		p.mu.Unlock()
		p.addNotices(1)
		require.ErrorIs(t, <-over, ErrSessionOver)
		p.mu.Lock()
		p.answer = nil
		p.mu.Unlock()
		stop := p.run(Session{ID: "session-1", Epoch: 1, Fence: 2})
		require.Equal(t, []string{"Service 1"}, noticedObjects(p.take()))
		require.NoError(t, stop())
	})
}

func TestNotices_AreBoundedToTheNewest(t *testing.T) {
	var all []runtime.Notice
	for i := range int64(2 * runtime.MaxNotices) {
		all = append(all, runtime.Notice{Seq: i + 1, Object: fmt.Sprint(i + 1), Message: "\xff"})
	}
	out := noticesOf(all)
	require.Len(t, out, runtime.MaxNotices)
	require.Equal(t, fmt.Sprint(2*runtime.MaxNotices), out[len(out)-1].Object)
	require.Empty(t, out[0].Message, "bytes that are not UTF-8 are removed")
	require.Len(t, newNotices(all[:50], all), 2*runtime.MaxNotices-50)
	require.Empty(t, newNotices(all, all[:50]))
}
