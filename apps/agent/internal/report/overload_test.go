package report

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// pausedSession returns a session whose control plane asks for a pause between instances.
func pausedSession(pause time.Duration) Session {
	s := first
	s.Resumed = true
	s.Limits = &agentv1.ReportLimits{MinInterval: durationpb.New(4 * time.Second), MaxInstances: 2, Pause: durationpb.New(pause)}
	return s
}

func busy(after time.Duration) error {
	return rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED, Limit: &windlassv1.LimitDetail{Name: "reports", RetryAfterMs: after.Milliseconds()},
	}, "later")
}

// gaps returns the times between the reports that were stored.
func (h *harness) gaps() (out []time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range max(len(h.at)-1, 0) {
		out = append(out, h.at[i+1].Sub(h.at[i]))
	}
	return out
}

func instanceIDs(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("ins_%03d", i))
	}
	return ids
}

func instancesIn(reqs []*agentv1.ReportRequest) (n int) {
	for _, r := range reqs {
		n += len(r.Instances)
	}
	return n
}

func TestOverload_PausesInstancesAndLetsEdgesPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, instanceIDs(6)...)
		stop := p.run(first)
		p.take()
		require.NoError(t, stop())
		stop = p.run(pausedSession(3 * time.Second))
		defer func() { require.NoError(t, stop()) }()
		p.set(windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, instanceIDs(6)...)
		got := p.take()
		require.Len(t, got, 1, "an agent that reconnects delays instances, too")
		require.Empty(t, got[0].Instances)
		require.EqualValues(t, 6, got[0].Rollups[0].Failed, "but rollups are reported at once")

		time.Sleep(1500 * time.Millisecond) // half of the pause, because Rand returns 0.5
		require.Equal(t, 2, instancesIn(p.take()))
		p.set(ready, "ins_005")
		got = p.take()
		require.Len(t, got, 1)
		require.Empty(t, got[0].Instances)
		require.EqualValues(t, 1, got[0].Rollups[0].ReadyReplicas, "counts are sent at once, during a pass")
		p.set(ready, "ins_004")
		require.EqualValues(t, 2, p.take()[0].Rollups[0].ReadyReplicas)
		time.Sleep(30 * time.Second)
		got = p.take()
		all := states(got, "ins_005")
		require.Equal(t, ready, all[len(all)-1], "the instance follows later")
		require.LessOrEqual(t, instancesIn(got), 6, "each instance is sent once, and once more if it changed meanwhile")
	})
}

func TestOverload_LastStateOfAPauseIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1", "ins_2")
		stop := p.run(first)
		p.take()
		require.NoError(t, stop())
		stop = p.run(pausedSession(10 * time.Second))
		defer func() { require.NoError(t, stop()) }()
		for n := range 1000 {
			p.mu.Lock()
			p.message = fmt.Sprint(n)
			p.mu.Unlock()
			p.signal()
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		got := p.take()
		require.LessOrEqual(t, instancesIn(got), 8, "at most 8 of 2000 states are sent")
		last := got[len(got)-1]
		for n := len(got) - 1; len(last.Instances) == 0; n-- {
			last = got[n]
		}
		require.Equal(t, "999", last.Instances[0].Message)
	})
}

func TestOverload_RefusedStatesAreSentLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1", "ins_2", "ins_3")
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		p.take()
		var refusals atomic.Int32
		p.answer = func(r *agentv1.ReportRequest) error {
			if len(r.Instances) > 0 && refusals.Load() < 3 {
				refusals.Add(1)
				return busy(2 * time.Second)
			}
			return nil
		}
		begin := time.Now()
		p.set(windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, "ins_1")
		got := p.take()
		require.Len(t, got, 1, "the facts are sent without the refused instances")
		require.EqualValues(t, 1, got[0].Rollups[0].Failed)
		p.set(running, "ins_1")
		require.Zero(t, p.take()[0].Rollups[0].Failed, "later changes of the facts are sent")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 2, refusals.Load(), "the delay grows with each refusal: 2 s, 4 s, 8 s")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.EqualValues(t, 3, refusals.Load())
		p.mu.Lock()
		got, at := p.got, p.at
		p.mu.Unlock()
		require.Equal(t, []windlassv1.InstanceStatus{running}, states(got, "ins_1"), "the present state is sent, and not the refused one")
		for n, r := range got {
			if len(r.Instances) > 0 {
				require.Equal(t, 14*time.Second, at[n].Sub(begin))
			}
		}
		for _, d := range p.gaps() {
			require.LessOrEqual(t, d, 5*time.Second, "signs of life renew the lease")
		}
		require.False(t, got[len(got)-1].InventoryBegin, "no inventory is needed")
	})
}

func TestOverload_RefusedInventoryStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1", "ins_2", "ins_3")
		refusals := 2
		p.answer = func(r *agentv1.ReportRequest) error {
			if len(r.Instances) > 0 && refusals > 0 {
				refusals--
				return busy(time.Second)
			}
			return nil
		}
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		got := p.take()
		require.Len(t, got, 1)
		require.True(t, got[0].InventoryBegin, "the facts of the inventory are sent before its instances")
		require.EqualValues(t, 3, got[0].Rollups[0].ReadyReplicas)
		require.False(t, got[0].InventoryEnd)
		since := got[0].Sequence
		time.Sleep(10 * time.Second)
		got = p.take()
		last := got[len(got)-1]
		for n := len(got) - 1; !saysMoreThanAlive(last); n-- {
			last = got[n]
		}
		require.True(t, last.InventoryEnd)
		require.Equal(t, since, last.InventorySince)
		require.Equal(t, 3, instancesIn(got))
	})
}

func TestOverload_RefusalOfEverythingWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		p.take()
		var asked atomic.Int32
		p.answer = func(*agentv1.ReportRequest) error {
			asked.Add(1)
			return busy(0)
		}
		p.set(running, "ins_1")
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.Greater(t, asked.Load(), int32(5))
		require.Less(t, asked.Load(), int32(100), "a refusal without a time delays reports by at least minRefusal")
		p.mu.Lock()
		p.answer = nil
		p.mu.Unlock()
		time.Sleep(time.Second)
		require.Equal(t, []windlassv1.InstanceStatus{running}, states(p.take(), "ins_1"))
	})
}

func TestOverload_EdgesAreRetriedInSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newHarness(t, "ins_1")
		stop := p.run(first)
		defer func() { require.NoError(t, stop()) }()
		p.take()
		var asked atomic.Int32
		p.answer = func(*agentv1.ReportRequest) error {
			asked.Add(1)
			return busy(time.Minute)
		}
		p.set(windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, "ins_1")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Greater(t, asked.Load(), int32(10))
		p.mu.Lock()
		p.answer = nil
		p.mu.Unlock()
		time.Sleep(maxFactsDelay)
		got := p.take()
		require.NotEmpty(t, got)
		require.EqualValues(t, 1, got[len(got)-1].Rollups[0].Failed)
	})
}
