package scaler

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// playPool is play with a pool of prefill servers, which are coupled to decode servers.
func playPool(t *testing.T, test func(t *testing.T, f *harness)) {
	t.Helper()
	play(t, 100, func(t *testing.T, f *harness) {
		f.set(func() {
			a := f.apps["app_1"]
			a.Scaling.Policy = &windlassv1.ScalingPolicy{Roles: []*windlassv1.RoleScaling{
				{
					Role: "prefill", Max: 8, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "10"}},
					Couple: &windlassv1.ScalingCouple{Role: "decode", Ratio: []float64{0.5, 4}},
				},
				{Role: "decode", Max: 8, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_KV_CACHE, Target: "0.5"}}},
			}}
			a.Regions["reg_1"] = model.ScaledRegion{
				Name: "us-east-1", Replicas: 100, Counted: 100, Generation: 1, CanWake: true, MadeFor: []string{"dep_1"},
				Roles: model.RoleCounts{"prefill": 2, "decode": 2}, RoleCosts: map[string]model.RoleCost{"prefill": {Instances: 1}, "decode": {Instances: 1, GPUs: 2}},
			}
		})
		test(t, f)
	})
}

// reportPool sends a report every 5 s, during d: the instances are ready, have the requests in flight, and use the share
// cache of their caches. At zero, the requests wait at gateways.
func (h *harness) reportPool(d time.Duration, requests, cache float64) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Second) {
		counts, ready, inFlight, queued := h.counts(), int32(1), requests, 0.0
		if h.replicas("app_1") == 0 {
			counts, ready, inFlight, queued = nil, 0, h.streams, requests
		}
		h.svc.Observe("reg_1", []*agentv1.LoadReport{{AppId: "app_1", Queued: &queued, Deployments: []*agentv1.DeploymentLoad{
			{DeploymentId: "dep_1", InFlight: &inFlight, Rate: new(inFlight), Ready: ready, Roles: []*agentv1.RoleLoad{
				{Role: "prefill", Ready: counts["prefill"]},
				{Role: "decode", Ready: counts["decode"], Levels: map[string]float64{"kvCache": cache}},
			}},
			{DeploymentId: "dep_pinned", InFlight: new(1000.0), Roles: []*agentv1.RoleLoad{{Role: "decode", Ready: 50, Levels: map[string]float64{"kvCache": 1}}}},
		}}})
	}
}

func (h *harness) counts() model.RoleCounts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.apps["app_1"].Regions["reg_1"].Roles
}

func (h *harness) shownRole(role string) *windlassv1.RegionScaling {
	for _, r := range h.svc.Live("app_1")["reg_1"].GetRoles() {
		if r.GetRole() == role {
			return r
		}
	}
	return nil
}

func TestService_RolesFollowTheirOwnLoads(t *testing.T) {
	t.Parallel()
	playPool(t, func(t *testing.T, f *harness) {
		f.reportPool(2*time.Minute, 20, 0.5)
		require.Equal(t, model.RoleCounts{"prefill": 2, "decode": 2}, f.counts())
		f.reportPool(90*time.Second, 50, 0.5)
		require.Equal(t, model.RoleCounts{"prefill": 5, "decode": 2}, f.counts())
		require.Equal(t, 2, testutil.CollectAndCount(f.svc.metrics.wanted))
		require.InDelta(t, 5, testutil.ToFloat64(f.svc.metrics.ready.WithLabelValues("app_1", "us-east-1", "prefill")), 1e-9)
		last := f.writes[len(f.writes)-1]
		require.Equal(t, []model.RescaledRole{{Role: "prefill", From: 4, Wanted: 5}}, last.Roles)
		require.Len(t, last.Entries, 1)
		require.Equal(t, "ScalingDecided", last.Entries[0].What)
		require.Contains(t, last.Entries[0].Why, "role prefill: 5 instances instead of 4: inFlight")

		// 8 decode servers need 4 prefill servers, which the load alone would not keep.
		f.reportPool(10*time.Minute, 50, 1)
		require.Equal(t, model.RoleCounts{"prefill": 5, "decode": 8}, f.counts())
		require.Equal(t, "Maximum", f.shownRole("decode").GetLimit())
		require.Contains(t, f.entries(), "ScalingLimited")
		f.reportPool(20*time.Minute, 1, 0.5)
		require.Equal(t, model.RoleCounts{"prefill": 4, "decode": 8}, f.counts())
		require.Equal(t, "Ratio", f.shownRole("prefill").GetLimit())
		require.Contains(t, f.shownRole("prefill").GetWhy(), "coupled to decode: 0.5 to 4 for each instance of it")
		f.reportPool(20*time.Minute, 1, 0.01)
		require.Equal(t, model.RoleCounts{"prefill": 1, "decode": 1}, f.counts())
	})
}

func TestService_RolesThatMustNotChange(t *testing.T) {
	t.Parallel()
	t.Run("an agent of an earlier release reports no roles", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			f.report(10*time.Minute, 90)
			require.Equal(t, model.RoleCounts{"prefill": 2, "decode": 2}, f.counts())
			require.Equal(t, "NoReport", f.shownRole("decode").GetLimit())
		})
	})
	t.Run("a hold of one role", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			f.set(func() {
				f.apps["app_1"].Scaling.Holds = []model.ScalingHold{{Role: "decode", Replicas: 2, Until: time.Now().Add(time.Hour).UnixMilli()}}
			})
			f.reportPool(10*time.Minute, 90, 1)
			require.Equal(t, model.RoleCounts{"prefill": 8, "decode": 2}, f.counts())
			require.Equal(t, "Hold", f.shownRole("decode").GetLimit())
		})
	})
	t.Run("a stopped pool", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			f.reportPool(time.Minute, 20, 0.5)
			f.set(func() {
				region := f.apps["app_1"].Regions["reg_1"]
				region.Replicas = 0
				f.apps["app_1"].Regions["reg_1"] = region
			})
			f.svc.Changed([]string{"app_1"})
			f.reportPool(10*time.Minute, 90, 1)
			require.Equal(t, model.RoleCounts{"prefill": 2, "decode": 2}, f.counts())
			require.Zero(t, testutil.CollectAndCount(f.svc.metrics.wanted))
		})
	})
	t.Run("a role that the version does not have", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			f.set(func() {
				region := f.apps["app_1"].Regions["reg_1"]
				region.Roles = model.RoleCounts{"decode": 2, "other": 3}
				f.apps["app_1"].Regions["reg_1"] = region
			})
			f.reportPool(10*time.Minute, 90, 1)
			require.Equal(t, model.RoleCounts{"decode": 8, "other": 3}, f.counts())
		})
	})
	t.Run("advice", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			f.set(func() { f.apps["app_1"].Scaling.Policy.Mode = windlassv1.ScalingPolicy_MODE_ADVISE })
			f.reportPool(10*time.Minute, 90, 1)
			require.Equal(t, model.RoleCounts{"prefill": 2, "decode": 2}, f.counts())
			require.EqualValues(t, 4, f.shownRole("decode").GetWanted())
		})
	})
}

// exceeds is the error of a write that the workspace's quota of 10 does not allow.
func exceeds(limit string, used int64) error {
	return rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED, Limit: &windlassv1.LimitDetail{Name: limit, Max: 10, Used: used, Asked: 4},
	}, "too many")
}

func TestService_RolesShareWhatAQuotaHasLeft(t *testing.T) {
	t.Parallel()
	refuse := func(f *harness, limit string, used int64) {
		f.set(func() { f.err = exceeds(limit, used) })
		f.reportPool(10*time.Second, 40, 1)
		f.set(func() { f.err = nil })
		f.reportPool(20*time.Second, 40, 1)
	}
	t.Run("of instances", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			refuse(f, "instances", 7)
			require.Equal(t, model.RoleCounts{"prefill": 4, "decode": 3}, f.counts())
			require.Equal(t, "Quota", f.shownRole("decode").GetLimit())
			f.reportPool(5*time.Minute, 40, 0.6)
			require.Greater(t, f.counts()["decode"], int32(3), "the write is tried again")
		})
	})
	t.Run("of GPUs", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			refuse(f, "gpus", 7)
			require.Equal(t, model.RoleCounts{"prefill": 4, "decode": 3}, f.counts(), "a prefill server has none")
		})
	})
}

func TestService_RolesStopGrowingWhereARegionHasNoRoom(t *testing.T) {
	t.Parallel()
	playPool(t, func(t *testing.T, f *harness) {
		f.set(func() {
			f.err = &model.NoRoomError{Fits: map[string]int32{"prefill": 4, "decode": 2}, Why: "no GPU is free"}
		})
		f.reportPool(10*time.Second, 40, 1)
		f.set(func() { f.err = nil })
		f.reportPool(20*time.Second, 40, 1)
		require.Equal(t, model.RoleCounts{"prefill": 4, "decode": 2}, f.counts())
		require.Equal(t, "Room", f.shownRole("decode").GetLimit())
		require.Contains(t, f.shownRole("decode").GetWhy(), "Room: the region has no room for more instances")
		require.Contains(t, f.entries(), "ScalingLimited")
		require.Positive(t, testutil.ToFloat64(f.svc.metrics.decisions.WithLabelValues("refused")))
		f.reportPool(2*time.Minute, 40, 0.6)
		require.Greater(t, f.counts()["decode"], int32(2), "the write is tried again")
	})
}

func TestService_RolesAskTheirQueryWithTheirOwnWindow(t *testing.T) {
	t.Parallel()
	playPool(t, func(t *testing.T, f *harness) {
		f.set(func() {
			roles := f.apps["app_1"].Scaling.Policy.Roles
			for _, r := range roles {
				r.Metrics = []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_PROMETHEUS, Query: "rate(jobs[{{window}}])", Target: "10"}}
			}
			roles[1].Up = &windlassv1.ScalingPace{Window: durationpb.New(5 * time.Minute)}
			f.figures = func(_ context.Context, m plan.Measure) analysis.Figures {
				if strings.Contains(m.Queries.New, "5m") || strings.Contains(m.Queries.New, "300s") {
					return analysis.Figures{New: new(30.0)}
				}
				return analysis.Figures{New: new(60.0)}
			}
		})
		f.reportPool(10*time.Minute, 1, 0.5)
		synctest.Wait()
		require.Equal(t, model.RoleCounts{"prefill": 6, "decode": 3}, f.counts())
	})
}

func TestService_RolesFollowQueries(t *testing.T) {
	t.Parallel()
	playPool(t, func(t *testing.T, f *harness) {
		f.set(func() {
			f.apps["app_1"].Scaling.Policy.Roles[0].Metrics = []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_PROMETHEUS, Query: "jobs", Target: "10"}}
			f.figures = func(context.Context, plan.Measure) analysis.Figures { return analysis.Figures{New: new(60.0)} }
		})
		f.reportPool(3*time.Minute, 1, 0.5)
		synctest.Wait()
		require.Equal(t, model.RoleCounts{"prefill": 6, "decode": 2}, f.counts())
	})
}

func TestService_SeriesEndWithTheRole(t *testing.T) {
	t.Parallel()
	playPool(t, func(t *testing.T, f *harness) {
		f.reportPool(time.Minute, 20, 0.5)
		require.Equal(t, 2, testutil.CollectAndCount(f.svc.metrics.wanted))
		f.set(func() { delete(f.apps["app_1"].Regions["reg_1"].Roles, "decode") })
		f.svc.Changed([]string{"app_1"})
		f.reportPool(time.Minute, 20, 0.5)
		require.Equal(t, 1, testutil.CollectAndCount(f.svc.metrics.wanted), "the live version has no decode servers any more")
	})
}

// mayGoToZero lets the pool go to zero after 10 min.
func (h *harness) mayGoToZero() {
	h.set(func() {
		p := h.apps["app_1"].Scaling.Policy
		p.Zero = &windlassv1.ScaleToZero{After: durationpb.New(10 * time.Minute)}
		p.Roles[0].Initial = new(int32(2))
		p.Roles[1].Min, p.Roles[1].Initial = new(int32(2)), new(int32(6))
	})
	h.svc.Changed([]string{"app_1"})
}

func TestService_RolesGoToZeroAndComeBackTogether(t *testing.T) {
	t.Parallel()
	playPool(t, func(t *testing.T, f *harness) {
		f.mayGoToZero()
		f.reportPool(2*time.Minute, 20, 0.5)
		f.reportPool(9*time.Minute, 0, 0.5)
		require.EqualValues(t, 100, f.replicas("app_1"))
		f.reportPool(2*time.Minute, 0, 0.5)
		require.Zero(t, f.replicas("app_1"))
		require.Equal(t, model.RoleCounts{"prefill": 3, "decode": 6}, f.counts(), "initial of each, and half as many prefill servers as decode servers")
		last := f.writes[len(f.writes)-1]
		require.Zero(t, *last.Pool)
		require.Len(t, last.Entries, 2)
		require.Contains(t, last.Entries[1].Why, "role decode: 0 instances instead of 2: kvCache 0.5 of 0.5 wants 2; the pool goes to zero, because there has been no request for 10m")

		writes := len(f.writes)
		f.reportPool(30*time.Minute, 0, 0)
		require.Len(t, f.writes, writes, "nothing changes, and no metric is missing")
		require.Equal(t, "role decode: 0 instances: the pool is at zero, and a request starts 6", f.shownRole("decode").GetWhy())
		require.Zero(t, f.shownRole("decode").GetWanted())

		f.reportPool(10*time.Second, 1, 0)
		require.EqualValues(t, 100, f.replicas("app_1"))
		require.Equal(t, model.RoleCounts{"prefill": 3, "decode": 6}, f.counts())
		require.Contains(t, f.writes[len(f.writes)-1].Entries[0].Why, "role prefill: 3 instances instead of 0: the pool comes back from zero, because there are requests")
		f.reportPool(4*time.Minute, 20, 0.01)
		require.Equal(t, model.RoleCounts{"prefill": 3, "decode": 6}, f.counts(), "the numbers with which it started count as wanted")
	})
}

func TestService_NoAppGoesToZeroIfNoRequestWouldStartIt(t *testing.T) {
	t.Parallel()
	// rollBack changes the live version to one without coldStart, with the replicas.
	rollBack := func(f *harness, replicas int32) {
		f.set(func() {
			region := f.apps["app_1"].Regions["reg_1"]
			region.CanWake, region.Replicas, region.Generation = false, replicas, region.Generation+1
			f.apps["app_1"].Regions["reg_1"] = region
		})
		f.svc.Changed([]string{"app_1"})
	}
	t.Run("a pool", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			f.mayGoToZero()
			rollBack(f, 100)
			f.reportPool(time.Hour, 0, 0.5)
			require.EqualValues(t, 100, f.replicas("app_1"))
			require.Contains(t, f.shownRole("decode").GetWhy(), "; it does not go to zero, because no request would start it")
		})
	})
	t.Run("a pool that a person stopped stays stopped", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			f.mayGoToZero()
			f.reportPool(time.Minute, 20, 0.5)
			rollBack(f, 0)
			f.reportPool(time.Hour, 0, 0)
			require.Zero(t, f.replicas("app_1"))
			require.Zero(t, testutil.CollectAndCount(f.svc.metrics.wanted))
		})
	})
	t.Run("an app of one role, which also comes back", func(t *testing.T) {
		t.Parallel()
		play(t, 1, func(t *testing.T, f *harness) {
			f.set(func() { f.apps["app_1"].Scaling.Policy.Min = new(int32(0)) })
			f.report(20*time.Minute, 0)
			require.Zero(t, f.replicas("app_1"))
			rollBack(f, 0)
			f.report(10*time.Second, 0)
			require.EqualValues(t, 1, f.replicas("app_1"))
			f.report(time.Hour, 0)
			require.EqualValues(t, 1, f.replicas("app_1"))
			require.Contains(t, f.svc.Live("app_1")["reg_1"].GetWhy(), "; it does not go to zero, because no request would start it")
		})
	})
}

func TestService_AStopByHandLasts(t *testing.T) {
	t.Parallel()
	playPool(t, func(t *testing.T, f *harness) {
		f.mayGoToZero()
		f.reportPool(2*time.Minute, 20, 0.5)
		f.set(func() {
			region := f.apps["app_1"].Regions["reg_1"]
			region.Replicas, region.Generation = 0, region.Generation+1
			f.apps["app_1"].Regions["reg_1"] = region
			f.streams = 1
		})
		f.svc.Changed([]string{"app_1"})
		f.reportPool(time.Hour, 0, 0)
		require.Zero(t, f.replicas("app_1"), "a stream that a stopping instance finishes wakes nothing")
		f.reportPool(10*time.Second, 1, 0)
		require.EqualValues(t, 100, f.replicas("app_1"))
	})
}

func TestService_PoolAtZeroStartsWithTheNumbersOfANewPolicy(t *testing.T) {
	t.Parallel()
	playPool(t, func(t *testing.T, f *harness) {
		f.mayGoToZero()
		f.reportPool(11*time.Minute, 0, 0.5)
		require.Zero(t, f.replicas("app_1"))
		f.set(func() { f.apps["app_1"].Scaling.Policy.Roles[1].Initial = new(int32(4)) })
		f.svc.Changed([]string{"app_1"})
		entries := len(f.entries())
		f.reportPool(time.Minute, 0, 0)
		require.Zero(t, f.replicas("app_1"))
		require.Equal(t, model.RoleCounts{"prefill": 2, "decode": 4}, f.counts())
		require.Len(t, f.entries(), entries)
		require.InDelta(t, 1, testutil.ToFloat64(f.svc.metrics.decisions.WithLabelValues("kept")), 1e-9)
	})
}

func TestService_PoolThatAQuotaKeepsAtZeroIsTriedOnceAMinute(t *testing.T) {
	t.Parallel()
	playPool(t, func(t *testing.T, f *harness) {
		f.mayGoToZero()
		f.reportPool(11*time.Minute, 0, 0.5)
		require.Zero(t, f.replicas("app_1"))
		f.set(func() {
			f.err = exceeds("instances", 10)
			f.apps["app_1"].Scaling.Holds = []model.ScalingHold{{Role: "decode", Replicas: 6, Until: time.Now().Add(time.Hour).UnixMilli()}}
		})
		f.svc.Changed([]string{"app_1"})
		f.reportPool(5*time.Minute, 0, 0)
		require.Zero(t, f.replicas("app_1"))
		require.InDelta(t, 5, testutil.ToFloat64(f.svc.metrics.decisions.WithLabelValues("refused")), 1)
		require.Contains(t, f.shownRole("decode").GetWhy(), "the pool comes back from zero, because a person set the instances of role decode for a time; this was refused: too many")
		f.set(func() { f.err = nil })
		f.reportPool(2*time.Minute, 0, 0)
		require.EqualValues(t, 100, f.replicas("app_1"))
	})
}

func TestService_RefusedNumberIsShown(t *testing.T) {
	t.Parallel()
	limited := func(f *harness) (n int) {
		for _, what := range f.entries() {
			if what == "ScalingLimited" {
				n++
			}
		}
		return n
	}
	// refuse makes writes that change a number fail.
	refuse := func(f *harness, err error) {
		f.set(func() { f.refuse = err })
	}
	invalid := rpc.ErrorWith(connect.CodeInvalidArgument, &windlassv1.ErrorDetail{Field: "replicas"}, "the region has no such hosts")
	// atZero lets the pool go to zero, and then sets another policy and refuses.
	atZero := func(t *testing.T, f *harness, err error) {
		t.Helper()
		f.mayGoToZero()
		f.reportPool(30*time.Minute, 0, 0.5)
		require.Zero(t, f.replicas("app_1"))
		refuse(f, err)
		f.set(func() { f.apps["app_1"].Scaling.Policy.Roles[1].Initial = new(int32(8)) })
		f.svc.Changed([]string{"app_1"})
	}
	t.Run("of the start of a pool, by a quota", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			atZero(t, f, exceeds("instances", 9))
			f.reportPool(time.Hour+30*time.Second, 0, 0)
			require.Equal(t, "role decode: 0 instances: the pool is at zero, and a request starts 6; Quota: the workspace's quota allows no more instances", f.shownRole("decode").GetWhy())
			require.Equal(t, "Quota", f.shownRole("decode").GetLimit())
			require.Equal(t, 1, limited(f))
		})
	})
	t.Run("of the start of a pool", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			atZero(t, f, invalid)
			f.reportPool(time.Hour+30*time.Second, 0, 0)
			require.Equal(t, "role decode: 0 instances: the pool is at zero, and a request starts 8; this was refused: the region has no such hosts", f.shownRole("decode").GetWhy())
			require.Equal(t, 2, limited(f), "of both roles")
			refuse(f, nil)
			f.reportPool(2*time.Minute, 0, 0)
			require.Equal(t, model.RoleCounts{"prefill": 4, "decode": 8}, f.counts())
			require.NotContains(t, f.shownRole("decode").GetWhy(), "refused")
		})
	})
	t.Run("of replicas", func(t *testing.T) {
		t.Parallel()
		play(t, 2, func(t *testing.T, f *harness) {
			f.report(time.Minute, 20)
			refuse(f, invalid)
			f.report(time.Hour, 40)
			require.EqualValues(t, 2, f.replicas("app_1"))
			require.Contains(t, f.svc.Live("app_1")["reg_1"].GetWhy(), "4 replicas instead of 2: inFlight 40 of 10 wants 4; this was refused: the region has no such hosts")
			require.Equal(t, 1, limited(f))
		})
	})
	t.Run("of a pool at zero in a closed region", func(t *testing.T) {
		t.Parallel()
		playPool(t, func(t *testing.T, f *harness) {
			atZero(t, f, rpc.ErrorWith(connect.CodeFailedPrecondition, &windlassv1.ErrorDetail{Reason: windlassv1.ErrorReason_ERROR_REASON_REGION_CLOSED}, "closed"))
			f.reportPool(10*time.Second, 1, 0)
			require.Equal(t, "role decode: 0 instances: the pool is at zero, and no request starts it; RegionClosed: the region takes no new instances", f.shownRole("decode").GetWhy())
			f.reportPool(time.Hour, 1, 0)
			require.Zero(t, f.replicas("app_1"))
			require.Equal(t, 2, limited(f), "of both roles")
		})
	})
}
