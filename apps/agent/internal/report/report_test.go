package report

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	running = windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
	ready   = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
	ended   = windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED
)

// harness is a region with one deployment, and a control plane that stores reports.
type harness struct {
	t       *testing.T
	changed chan struct{}
	rep     *Reporter

	mu        sync.Mutex
	instances map[string]windlassv1.InstanceStatus
	message   string
	notices   []runtime.Notice
	judged    bool
	unwanted  bool  // the deployment is quarantined
	since     int64 // the number that HeldSince returns
	applied   bool
	got       []*agentv1.ReportRequest
	at        []time.Time
	answer    func(*agentv1.ReportRequest) error // called before a report is stored
	lose      func(*agentv1.ReportRequest) error // called after a report is stored
}

func newHarness(t *testing.T, ids ...string) *harness {
	p := &harness{t: t, changed: make(chan struct{}, 1), instances: map[string]windlassv1.InstanceStatus{}, judged: true}
	for _, id := range ids {
		p.instances[id] = ready
	}
	rep, err := New(Config{
		Source: p, Send: p.send, Received: func() int64 { return 7 },
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Rand: func() float64 { return 0.5 },
	})
	require.NoError(t, err)
	p.rep = rep
	return p
}

func (h *harness) Observation() (runtime.Observation, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := runtime.ObservedDeployment{DeploymentID: "dep_1", Generation: 1}
	for _, id := range slices.Sorted(maps.Keys(h.instances)) {
		d.Instances = append(d.Instances, runtime.Instance{ID: id, Group: int(id[len(id)-1]), Status: h.instances[id], Message: h.message})
	}
	return runtime.Observation{Deployments: []runtime.ObservedDeployment{d}, Notices: h.notices}, true
}

func (h *harness) Applied() []*agentv1.AppliedState {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.applied {
		return nil
	}
	return []*agentv1.AppliedState{{Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: "dep_1", Generation: 1}}
}

func (h *harness) Quarantined() ([]*agentv1.QuarantinedKey, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unwanted {
		return []*agentv1.QuarantinedKey{{Key: "dep_1", Generation: 1}}, h.judged
	}
	return nil, h.judged
}

func (h *harness) HeldSince(string) (int64, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since, !h.unwanted
}

func (h *harness) Changed() <-chan struct{} { return h.changed }

func (h *harness) send(ctx context.Context, req *agentv1.ReportRequest) (*agentv1.ReportResponse, error) {
	h.mu.Lock()
	answer, lose := h.answer, h.lose
	h.mu.Unlock()
	if answer != nil {
		if err := answer(req); err != nil {
			return nil, err
		}
	}
	h.mu.Lock()
	h.got = append(h.got, proto.CloneOf(req))
	h.at = append(h.at, time.Now())
	h.mu.Unlock()
	if lose != nil {
		if err := lose(req); err != nil {
			return nil, err
		}
	}
	return &agentv1.ReportResponse{}, ctx.Err()
}

// set sets the status of instances. The status UNSPECIFIED removes them.
func (h *harness) set(status windlassv1.InstanceStatus, ids ...string) {
	h.mu.Lock()
	for _, id := range ids {
		if status == 0 {
			delete(h.instances, id)
		} else {
			h.instances[id] = status
		}
	}
	h.mu.Unlock()
	h.signal()
}

func (h *harness) signal() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// take returns the stored reports and forgets them.
func (h *harness) take() []*agentv1.ReportRequest {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.got
	h.got, h.at = nil, nil
	return got
}

func (h *harness) run(s Session) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.rep.Run(ctx, s) }()
	return func() error {
		cancel()
		return <-done
	}
}

var first = Session{
	ID: "session-1", Epoch: 1, Fence: 1, LeaseTTL: 15 * time.Second,
	Limits: &agentv1.ReportLimits{MinInterval: durationpb.New(200 * time.Millisecond), MaxInstances: 2},
}

func resumed(s Session) Session {
	s.Resumed = true
	return s
}

func states(reqs []*agentv1.ReportRequest, id string) (out []windlassv1.InstanceStatus) {
	for _, r := range reqs {
		for _, i := range r.Instances {
			if i.Id == id {
				out = append(out, i.Status)
			}
		}
	}
	return out
}

func TestSession_StartsWithACompleteInventory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1", "ins_2", "ins_3", "ins_4", "ins_5")
		// A change during the inventory is reported after it.
		p.answer = func(r *agentv1.ReportRequest) error {
			if r.Sequence == 2 {
				p.set(0, "ins_1")
			}
			return nil
		}
		stop := p.run(first)
		got := p.take()
		require.Len(t, got, 4)
		for i, r := range got {
			require.EqualValues(t, i+1, r.Sequence)
			require.Equal(t, i == 0, r.InventoryBegin)
			require.Equal(t, i == 2, r.InventoryEnd)
			require.LessOrEqual(t, len(r.Instances), 2)
		}
		require.EqualValues(t, 1, got[2].InventorySince)
		require.True(t, got[0].QuarantineComplete)
		require.EqualValues(t, 5, got[0].Rollups[0].ReadyReplicas, "the first report has the counts")
		require.Empty(t, got[1].Rollups)
		require.EqualValues(t, 4, got[2].Rollups[0].ReadyReplicas, "each report has the edges at that time")
		require.Equal(t, []windlassv1.InstanceStatus{ready, ended}, states(got, "ins_1"))
		require.NoError(t, stop())

		stop = p.run(resumed(first))
		require.Empty(t, p.take(), "a resumed session sends no inventory")
		require.NoError(t, stop())
		stop = p.run(first)
		got = p.take()
		require.True(t, got[0].InventoryBegin, "a session that was not resumed begins with an inventory")
		require.EqualValues(t, 5, got[0].Sequence, "the sequence continues, because the fence is the same")
		require.NoError(t, stop())
		next := first
		next.Fence = 2
		stop = p.run(next)
		require.EqualValues(t, 1, p.take()[0].Sequence)
		require.NoError(t, stop())
	})
}

func TestReport_UnansweredIsSentAgainUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		p.take()
		failures := 3
		p.lose = func(*agentv1.ReportRequest) error {
			if failures--; failures >= 0 {
				return connect.NewError(connect.CodeUnavailable, errors.New("the answer is lost"))
			}
			return nil
		}
		p.set(running, "ins_1")
		synctest.Wait()
		p.set(ready, "ins_1")
		time.Sleep(20 * time.Second)
		got := p.take()
		for _, r := range got[1:4] {
			require.True(t, proto.Equal(got[0], r), "%v", r)
		}
		require.Equal(t, got[0].Sequence+1, got[4].Sequence)
		require.Equal(t, ready, got[4].Instances[0].Status)
	})
}

func TestReport_UnansweredCausesAnInventoryAfterItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t)
		stop := p.run(first)
		p.take()
		p.lose = func(*agentv1.ReportRequest) error {
			return connect.NewError(connect.CodeUnavailable, errors.New("cut"))
		}
		p.set(ready, "ins_1")
		require.NotEmpty(t, states(p.take(), "ins_1"), "the report was stored, and its answer was lost")
		require.NoError(t, stop())
		p.set(0, "ins_1")
		p.lose = nil
		stop = p.run(resumed(first))
		got := p.take()
		require.True(t, got[0].InventoryEnd, "only an inventory shows that the instance is gone")
		require.Empty(t, states(got, "ins_1"))
		require.NoError(t, stop())
	})
}

func TestInstance_VanishedIsTerminatedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1", "ins_2")
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		p.take()
		p.set(0, "ins_1")
		time.Sleep(time.Minute)
		require.Equal(t, []windlassv1.InstanceStatus{ended}, states(p.take(), "ins_1"))
	})
}

func TestInstance_EndKeepsItsReason(t *testing.T) {
	for _, c := range []struct {
		status       windlassv1.InstanceStatus
		reason, want string
	}{
		{windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING, runtime.ReasonPreempted, runtime.ReasonPreempted},
		{windlassv1.InstanceStatus_INSTANCE_STATUS_DRAINING, "", runtime.ReasonStopped},
		{windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, runtime.ReasonOOMKilled, runtime.ReasonOOMKilled},
		{running, runtime.ReasonNotReady, runtime.ReasonStopped},
		{ready, "", runtime.ReasonStopped},
	} {
		gone := terminatedState(&agentv1.InstanceState{Status: c.status, Reason: c.reason, Message: "why", Address: "10.0.0.1:80"})
		require.Equal(t, ended, gone.Status)
		require.Equal(t, c.want, gone.Reason)
		require.Equal(t, map[bool]string{true: "why"}[c.want == c.reason], gone.Message)
		require.Empty(t, gone.Address)
	}
}

func TestReport_SendsEdgesAtOnceAndCoalescesOtherChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		p.set(running, "ins_1")
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		p.take()
		setMessage := func(m string) {
			p.mu.Lock()
			p.message = m
			p.mu.Unlock()
			p.signal()
			synctest.Wait()
		}
		setMessage("one")
		require.Len(t, p.take(), 1)
		setMessage("two")
		setMessage("three")
		require.Empty(t, p.take())
		time.Sleep(200 * time.Millisecond)
		got := p.take()
		require.Len(t, got, 1)
		require.Equal(t, "three", got[0].Instances[0].Message)
		p.set(ready, "ins_1")
		require.Len(t, p.take(), 1, "an edge does not wait")
	})
}

func TestHeartbeat_IsNotDelayedByABusySource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		p.take()
		for range 60 * 100 {
			p.signal()
			time.Sleep(10 * time.Millisecond)
		}
		p.mu.Lock()
		at := p.at
		p.mu.Unlock()
		require.GreaterOrEqual(t, len(at), 11)
		for i := range at[1:] {
			require.LessOrEqual(t, at[i+1].Sub(at[i]), 5*time.Second, "signs of life come within a third of the lease")
		}
	})
}

func TestHeartbeat_DueSoonIsSentInAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		p.take()
		// heard returns how many signs of life the agent sends at once if the control plane sends
		// one after d.
		heard := func(d time.Duration) int {
			time.Sleep(d)
			p.take()
			p.rep.Heard()
			synctest.Wait()
			return len(p.take())
		}
		require.Zero(t, heard(time.Second), "a sign of life was sent just now")
		require.Equal(t, 1, heard(2*time.Second), "more than half of the 4 to 5 s have passed")
		require.Zero(t, heard(0))
	})
}

func TestSession_AfterARefusalReportsEverything(t *testing.T) {
	for _, code := range []connect.Code{connect.CodeFailedPrecondition, connect.CodeUnauthenticated, connect.CodeInvalidArgument} {
		synctest.Test(t, func(t *testing.T) {
			p := newHarness(t, "ins_1")
			done := make(chan error, 1)
			go func() { done <- p.rep.Run(t.Context(), first) }()
			p.take()
			p.answer = func(*agentv1.ReportRequest) error { return connect.NewError(code, errors.New("no")) }
			p.set(running, "ins_1")
			require.ErrorIs(t, <-done, ErrSessionOver)
			p.answer = nil
			stop := p.run(resumed(first))
			require.True(t, p.take()[0].InventoryBegin)
			require.NoError(t, stop())
		})
	}
}

func TestQuarantine_UnknownIsNotReportedAsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		p.judged = false
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		require.False(t, p.take()[0].QuarantineComplete, "an empty list would clear the keys that an operator approved")
		p.mu.Lock()
		p.judged = true
		p.mu.Unlock()
		p.signal()
		time.Sleep(time.Second)
		require.True(t, p.take()[0].QuarantineComplete)
	})
}

// The control plane ignores reports of a deployment that it did not assign. If it assigns the deployment later, for
// example after its database was restored, all of the deployment is reported again.
func TestAssignment_OfARunningDeploymentIsReportedInFull(t *testing.T) {
	again := func(t *testing.T, p *harness, change func()) {
		t.Helper()
		p.mu.Lock()
		change()
		p.mu.Unlock()
		p.signal()
		time.Sleep(time.Second)
		got := p.take()
		require.NotEmpty(t, got)
		require.True(t, got[0].InventoryBegin)
		require.Len(t, got[0].Rollups, 1, "the counts are reported as well")
		require.Equal(t, []windlassv1.InstanceStatus{ready}, states(got, "ins_1"))
		require.Equal(t, []windlassv1.InstanceStatus{ready}, states(got, "ins_2"))
		time.Sleep(time.Second)
		require.Empty(t, states(p.take(), "ins_1"), "once")
	}
	for name, change := range map[string]func(*harness){
		"from quarantine": func(p *harness) { p.unwanted, p.applied = false, true },
		// The deployment leaves the quarantine once it is assigned, and is applied later.
		"before it is applied": func(p *harness) { p.unwanted = false },
		// A snapshot without the deployment and a delta with it may both arrive while a report is
		// in flight.
		"between two looks": func(p *harness) { p.unwanted, p.applied, p.since = false, true, 7 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newHarness(t, "ins_1", "ins_2")
				p.unwanted = name != "between two looks"
				p.applied = !p.unwanted
				stop := p.run(first)
				defer func() { require.NoError(t, stop()) }()
				require.Len(t, states(p.take(), "ins_2"), 1)
				again(t, p, func() { change(p) })
				p.mu.Lock()
				p.applied = true
				p.mu.Unlock()
				p.signal()
				time.Sleep(time.Second)
				for _, r := range p.take() {
					require.False(t, r.InventoryBegin, "the deployment was reported when it was assigned")
				}
			})
		})
	}
}

func TestAssignment_InventoryIsRepeatedAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		p.unwanted = true
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		p.take()
		p.mu.Lock()
		p.unwanted = false
		p.answer = func(r *agentv1.ReportRequest) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if r.InventoryBegin {
				p.answer = nil
				return busy(time.Second)
			}
			return nil
		}
		p.mu.Unlock()
		p.signal()
		time.Sleep(5 * time.Second)
		require.Equal(t, []windlassv1.InstanceStatus{ready}, states(p.take(), "ins_1"))
	})
}

func TestText_InvalidUTF8IsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		p.message = "bad \xff byte" + strings.Repeat("é", 4000)
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		got := p.take()
		_, err := proto.Marshal(got[0])
		require.NoError(t, err)
		require.LessOrEqual(t, len(got[0].Instances[0].Message), maxText)
	})
}
