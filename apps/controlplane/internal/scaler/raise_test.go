package scaler

import (
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// agent is a region that was cut off and raised its replicas. It gives the raise up with another generation.
type agent struct {
	f          *harness
	to         int32
	generation int64
}

// report sends a report every 5 s, during d, with the requests in flight, and with the raise until it is answered.
func (a *agent) report(d time.Duration, inFlight float64) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Second) {
		a.f.mu.Lock()
		region := a.f.apps["app_1"].Regions["reg_1"]
		a.f.mu.Unlock()
		load := &agentv1.DeploymentLoad{DeploymentId: "dep_1", Ready: region.Replicas, InFlight: &inFlight}
		if a.to > 0 && region.Generation == a.generation {
			load.Ready, load.RaisedTo, load.RaisedGeneration = a.to, a.to, a.generation
		}
		a.f.svc.Observe("reg_1", []*agentv1.LoadReport{{AppId: "app_1", Deployments: []*agentv1.DeploymentLoad{load}}})
	}
}

func (h *harness) generation() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.apps["app_1"].Regions["reg_1"].Generation
}

func TestService_AdoptsARaise(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		a := &agent{f: f, to: 6, generation: 1}
		a.report(5*time.Second, 55)
		require.EqualValues(t, 6, f.replicas("app_1"), "at once, although the windows are empty")
		require.Equal(t, []string{"ScalingRaised"}, f.entries())
		require.Contains(t, f.writes[0].Entries[0].Why, "the region was cut off, and went to 6 by itself")
		a.report(4*time.Minute, 10)
		require.EqualValues(t, 6, f.replicas("app_1"), "the window of down counts from the adoption")
		a.report(6*time.Minute, 10)
		require.Less(t, f.replicas("app_1"), int32(6))
	})
}

func TestService_RefusedRaiseGetsANewGeneration(t *testing.T) {
	t.Parallel()
	quota := rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED, Limit: &windlassv1.LimitDetail{Name: "instances", Max: 8, Used: 7},
	}, "too many")
	for name, c := range map[string]struct {
		change func(*harness)
		// err is the error of the first write.
		err   error
		to    int32
		want  int32
		entry string
		limit string
	}{
		"held": {change: func(f *harness) {
			f.apps["app_1"].Scaling.Holds = []model.ScalingHold{{Replicas: 2, Until: time.Now().Add(time.Hour).UnixMilli()}}
		}, to: 6, want: 2, entry: "ScalingRaiseRefused", limit: "Hold"},
		"above the maximum": {to: 12, want: 10, entry: "ScalingRaised", limit: "Maximum"},
		"a lower maximum":   {change: func(f *harness) { f.apps["app_1"].Scaling.Policy.Max = 2 }, to: 6, want: 2, entry: "ScalingRaiseRefused", limit: "Maximum"},
		"quota for one":     {err: quota, to: 6, want: 3, entry: "ScalingRaised", limit: "Quota"},
		"closed": {
			err: rpc.Error(connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_REGION_CLOSED, "region", "closed"),
			to:  6, want: 2, entry: "ScalingRaiseRefused", limit: "RegionClosed",
		},
		"no room": {err: &model.NoRoomError{Fits: map[string]int32{"": 2}, Why: "no GPUs"}, to: 6, want: 2, entry: "ScalingRaiseRefused", limit: "Room"},
		"another reason": {
			err: rpc.Error(connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, "replicas", "the port is taken"),
			to:  6, want: 2, entry: "ScalingRaiseRefused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, 2, func(t *testing.T, f *harness) {
				f.set(func() {
					if f.err = c.err; c.change != nil {
						c.change(f)
					}
				})
				a := &agent{f: f, to: c.to, generation: 1}
				if c.err != nil {
					f.svc.Observe("reg_1", []*agentv1.LoadReport{{AppId: "app_1", Deployments: []*agentv1.DeploymentLoad{
						{DeploymentId: "dep_1", Ready: c.to, InFlight: new(20.0), RaisedTo: c.to, RaisedGeneration: 1},
					}}})
					time.Sleep(500 * time.Millisecond)
					synctest.Wait()
					f.set(func() { f.err = nil })
				}
				a.report(80*time.Second, 20)
				require.EqualValues(t, 2, f.generation(), "one answer")
				require.Equal(t, c.want, f.replicas("app_1"))
				require.True(t, f.writes[0].Renews)
				require.Equal(t, []string{c.entry}, f.entries()[:1])
				require.Equal(t, c.limit, f.writes[0].Decision.GetLimit())
			})
		})
	}
}

func TestService_IgnoresARaiseOfAnotherGeneration(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		for range 12 {
			f.svc.Observe("reg_1", []*agentv1.LoadReport{{AppId: "app_1", Deployments: []*agentv1.DeploymentLoad{
				{DeploymentId: "dep_1", Ready: 6, InFlight: new(20.0), RaisedTo: 6, RaisedGeneration: 7},
				{DeploymentId: "dep_pinned", Ready: 6, RaisedTo: 6, RaisedGeneration: 1},
			}}})
			time.Sleep(5 * time.Second)
		}
		require.EqualValues(t, 2, f.replicas("app_1"), "a person or a deploy wrote another generation meanwhile")
		require.EqualValues(t, 1, f.generation())
		require.Empty(t, f.entries())
	})
}
