package report

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// loads has one report to send after each put.
type loads struct {
	mu      sync.Mutex
	due     []*agentv1.LoadReport
	resets  int
	changed chan struct{}
}

func (l *loads) Due() []*agentv1.LoadReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.due
}

func (l *loads) Answered([]*agentv1.LoadReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = nil
}

func (l *loads) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resets++
}

func (l *loads) Changed() <-chan struct{} { return l.changed }

func (l *loads) put(app string) {
	l.mu.Lock()
	l.due = []*agentv1.LoadReport{{AppId: app}}
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func TestLoads(t *testing.T) {
	of := func(reports []*agentv1.ReportRequest) (apps []string) {
		for _, r := range reports {
			for _, l := range r.Loads {
				apps = append(apps, l.AppId)
			}
		}
		return apps
	}
	t.Run("are sent at once, only once, and not in an inventory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newHarness(t, "ins_1")
			l := &loads{changed: make(chan struct{}, 1)}
			p.rep.cfg.Loads = l
			stop := p.run(Session{ID: "session-1", Epoch: 1, Fence: 1})
			p.take()
			require.Equal(t, 1, l.resets)
			l.put("app_1")
			got := p.take()
			require.Equal(t, []string{"app_1"}, of(got))
			require.Len(t, got, 1)
			require.Empty(t, got[0].Instances)
			time.Sleep(time.Minute)
			require.Empty(t, of(p.take()))
			require.NoError(t, stop())

			l.put("app_2")
			stop = p.run(Session{ID: "session-1", Epoch: 1, Fence: 1, Resumed: true})
			require.Equal(t, []string{"app_2"}, of(p.take()))
			require.Equal(t, 2, l.resets, "a restarted control plane may have lost the loads")
			require.NoError(t, stop())
		})
	})
	t.Run("of a report that was not answered are sent again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newHarness(t, "ins_1")
			l := &loads{changed: make(chan struct{}, 1)}
			p.rep.cfg.Loads = l
			stop := p.run(Session{ID: "session-1", Epoch: 1, Fence: 1})
			p.take()
			p.mu.Lock()
			p.answer = func(*agentv1.ReportRequest) error { return busy(time.Second) }
			p.mu.Unlock()
			l.put("app_1")
			require.Empty(t, p.take())
			require.Len(t, l.Due(), 1)
			p.mu.Lock()
			p.answer = nil
			p.mu.Unlock()
			time.Sleep(time.Minute)
			l.put("app_2")
			require.Equal(t, []string{"app_2"}, of(p.take()), "only the newest loads")
			require.NoError(t, stop())
		})
	})
}
