package scaler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/scaling"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// harness is the service, the state of the apps, and the decisions that were written.
type harness struct {
	mu     sync.Mutex
	apps   map[string]*model.ScaledApp
	reads  int
	writes []model.Rescale
	// loads are the stored chunks. storeErr is the error of stores, nil for none.
	loads    []model.LoadChunk
	stores   int
	storeErr error
	err      error
	held     bool
	passed   []*agentv1.LoadReport
	svc      *Service
	// streams is the number of requests that instances of a pool finish while they stop.
	streams float64
	// refuse is the error of writes that raise a number. nil: none.
	refuse error
	// figures answers queries; nil: there is no Prometheus.
	figures func(context.Context, plan.Measure) analysis.Figures
	asked   []plan.Measure
}

func (h *harness) Measure(ctx context.Context, due []plan.Measure) (out []plan.Measurement) {
	h.mu.Lock()
	answer := h.figures
	h.asked = append(h.asked, due...)
	h.mu.Unlock()
	for _, m := range due {
		figures := analysis.Figures{Problem: "there is no Prometheus"}
		if answer != nil {
			figures = answer(ctx, m)
		}
		out = append(out, plan.Measurement{RegionID: m.RegionID, Check: m.Check, Figures: figures})
	}
	return out
}

func (h *harness) ScaledApps(_ context.Context, ids []string) (out []model.ScaledApp, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads++
	for _, id := range ids {
		if a := h.apps[id]; a != nil {
			read := *a
			read.Regions = maps.Clone(a.Regions)
			out = append(out, read)
		}
	}
	return out, nil
}

func (h *harness) StoreLoads(_ context.Context, chunks []model.LoadChunk) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stores++
	if h.storeErr != nil {
		return h.storeErr
	}
	for _, c := range chunks {
		same := func(o model.LoadChunk) bool {
			return o.AppID == c.AppID && o.RegionID == c.RegionID && o.Role == c.Role && o.BeganAt == c.BeganAt
		}
		h.loads = append(slices.DeleteFunc(h.loads, same), c)
	}
	return nil
}

func (h *harness) Rescale(_ context.Context, r model.Rescale) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.err
	}
	a := h.apps[r.AppID]
	region := a.Regions[r.RegionID]
	if region.Replicas != r.From || region.Generation != r.Generation || a.Scaling.UpdatedAt != r.ScalingAt {
		return model.ErrStale
	}
	grows := r.Pool != nil && *r.Pool > 0 || len(r.Roles) == 0 && r.Pool == nil && r.Decision.GetWanted() > r.From
	for _, role := range r.Roles {
		if region.Roles[role.Role] != role.From {
			return model.ErrStale
		}
		grows = grows || role.Wanted > role.From
	}
	if r.Writes && grows && h.refuse != nil {
		return h.refuse
	}
	if h.writes = append(h.writes, r); r.Writes && (len(r.Roles) > 0 || r.Pool != nil) {
		region.Roles, region.Generation = maps.Clone(region.Roles), region.Generation+1
		for _, role := range r.Roles {
			region.Roles[role.Role] = role.Wanted
		}
		if r.Pool != nil {
			region.Replicas = *r.Pool
		}
		a.Regions[r.RegionID] = region
	} else if r.Writes {
		region.Replicas, region.Generation = r.Decision.GetWanted(), region.Generation+1
		a.Regions[r.RegionID] = region
	}
	h.svc.Changed([]string{r.AppID})
	return nil
}

func (h *harness) passOn(_ string, loads []*agentv1.LoadReport) (dropped int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.passed = append(h.passed, loads...)
	return 0
}

func (h *harness) replicas(app string) int32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.apps[app].Regions["reg_1"].Replicas
}

func (h *harness) entries() (out []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.writes {
		for _, e := range w.Entries {
			out = append(out, e.What)
		}
	}
	return out
}

func (h *harness) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// play runs test with a scaler in virtual time.
func play(t *testing.T, replicas int32, test func(t *testing.T, f *harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &harness{held: true, apps: map[string]*model.ScaledApp{"app_1": {
			AppID: "app_1", WorkspaceID: "ws_1", Name: "chat", Deployments: map[string]bool{"dep_1": true},
			Scaling: model.Scaling{UpdatedAt: 1, Policy: &windlassv1.ScalingPolicy{
				Max: 10, Metrics: []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_IN_FLIGHT, Target: "10"}},
			}},
			Regions: map[string]model.ScaledRegion{"reg_1": {Name: "us-east-1", Replicas: replicas, Counted: replicas, Generation: 1, Instances: 1, CanWake: true, MadeFor: []string{"dep_1"}}},
		}}}
		var err error
		f.svc, err = New(Config{Metrics: f, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		needs := Needs{Apps: f, Holds: func(string) bool { f.mu.Lock(); defer f.mu.Unlock(); return f.held }, PassOn: f.passOn}
		go func() { done <- f.svc.Run(ctx, needs) }()
		synctest.Wait()
		test(t, f)
		cancel()
		require.NoError(t, <-done)
	})
}

// report sends a report every 5 s, during d: the replicas are ready and have the requests in flight.
func (h *harness) report(d time.Duration, inFlight float64) { h.reportOf(d, inFlight, "app_1") }

// reportOf is report for each of the apps.
func (h *harness) reportOf(d time.Duration, inFlight float64, apps ...string) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Second) {
		var loads []*agentv1.LoadReport
		for _, id := range apps {
			loads = append(loads, &agentv1.LoadReport{AppId: id, Deployments: []*agentv1.DeploymentLoad{
				{DeploymentId: "dep_1", Ready: h.replicas(id), InFlight: &inFlight},
				{DeploymentId: "dep_pinned", Ready: 5, InFlight: new(1000.0)},
			}})
		}
		h.svc.Observe("reg_1", loads)
	}
}

func TestService_WokenAppGetsWakeTo(t *testing.T) {
	t.Parallel()
	play(t, 1, func(t *testing.T, f *harness) {
		f.set(func() {
			p := f.apps["app_1"].Scaling.Policy
			p.Min, p.Zero = new(int32(0)), &windlassv1.ScaleToZero{WakeTo: 3}
		})
		f.report(20*time.Minute, 0)
		require.Zero(t, f.replicas("app_1"))
		f.set(func() { // the planner answers the region, which started a replica
			region := f.apps["app_1"].Regions["reg_1"]
			region.Replicas, region.Generation = 1, region.Generation+1
			f.apps["app_1"].Regions["reg_1"] = region
		})
		f.svc.Changed([]string{"app_1"})
		f.report(10*time.Second, 1)
		require.EqualValues(t, 3, f.replicas("app_1"))
		last := f.writes[len(f.writes)-1]
		require.Contains(t, last.Entries[0].Why, "3 replicas instead of 1: inFlight")
		require.Contains(t, last.Entries[0].Why, "; WakeTo: this many are wanted once a request woke the app")
		f.report(4*time.Minute, 1)
		require.EqualValues(t, 3, f.replicas("app_1"))
		f.report(10*time.Minute, 1)
		require.EqualValues(t, 1, f.replicas("app_1"))
	})
}

func TestService_SeriesEndWithTheApp(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]func(f *harness){
		"the region has left": func(f *harness) { f.apps["app_1"].Regions = map[string]model.ScaledRegion{} },
		"the app is deleted":  func(f *harness) { delete(f.apps, "app_1") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, 2, func(t *testing.T, f *harness) {
				f.report(time.Minute, 20)
				require.Equal(t, 1, testutil.CollectAndCount(f.svc.metrics.wanted))
				f.set(func() { gone(f) })
				f.svc.Changed([]string{"app_1"})
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Zero(t, testutil.CollectAndCount(f.svc.metrics.wanted))
				require.Zero(t, testutil.CollectAndCount(f.svc.metrics.ready))
			})
		})
	}
}

func TestService_MemoryIsBounded(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		for report := range 2*maxNone/1000 + 1 {
			loads := make([]*agentv1.LoadReport, 1000)
			for i := range loads {
				loads[i] = &agentv1.LoadReport{AppId: fmt.Sprintf("app_%d_%d", report, i)}
			}
			f.svc.Observe("reg_1", loads)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		f.svc.mu.Lock()
		defer f.svc.mu.Unlock()
		require.NotEmpty(t, f.svc.none)
		require.LessOrEqual(t, len(f.svc.none), maxNone)
		require.LessOrEqual(t, len(f.svc.targets), 1000, "an app that does not scale has no window")
		require.Empty(t, f.svc.apps)
	})
}

func TestService_StraysOfARegionAreBounded(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		f.report(time.Minute, 30)
		before := f.reads
		for report := range 100 {
			loads := make([]*agentv1.LoadReport, maxStrays)
			for i := range loads {
				loads[i] = &agentv1.LoadReport{AppId: fmt.Sprintf("app_%d_%d", report, i)}
			}
			dropped := f.svc.Observe("reg_evil", loads)
			require.Equal(t, report > 0, dropped == maxStrays)
		}
		f.report(20*time.Second, 60)
		require.LessOrEqual(t, f.reads-before, maxStrays/readAtOnce+10, "each stray is one app of a read")
		require.Equal(t, int32(6), f.replicas("app_1"), "another region's apps follow their load meanwhile")
		time.Sleep(strayFor)
		require.Zero(t, f.svc.Observe("reg_evil", []*agentv1.LoadReport{{AppId: "app_new"}}), "the region may have strays again")
	})
	t.Run("apps that are scaled in the region are none", func(t *testing.T) {
		t.Parallel()
		play(t, 2, func(t *testing.T, f *harness) {
			loads := make([]*agentv1.LoadReport, 2*maxStrays)
			f.set(func() {
				for i := range loads {
					a := *f.apps["app_1"]
					a.AppID = fmt.Sprint("app_of_many_", i)
					f.apps[a.AppID] = &a
					loads[i] = &agentv1.LoadReport{AppId: a.AppID}
				}
			})
			require.Zero(t, f.svc.Observe("reg_1", loads[:maxStrays]))
			time.Sleep(time.Second)
			synctest.Wait()
			require.Zero(t, f.svc.Observe("reg_1", loads[maxStrays:]))
		})
	})
}

func TestService_FollowsTheLoad(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		f.report(6*time.Minute, 20)
		require.Empty(t, f.entries())
		reads := f.reads
		require.LessOrEqual(t, reads, 6, "a step without a change costs no read")
		f.report(2*time.Minute, 65)
		require.EqualValues(t, 7, f.replicas("app_1"))
		f.report(20*time.Minute, 31)
		require.EqualValues(t, 4, f.replicas("app_1"))
		got := f.svc.Live("app_1")["reg_1"]
		require.EqualValues(t, 4, got.GetWanted())
		require.Equal(t, "us-east-1", got.GetRegion())
		f.report(10*time.Minute, 500)
		require.EqualValues(t, 10, f.replicas("app_1"))
		before := len(f.entries())
		f.report(2*time.Hour, 500)
		require.LessOrEqual(t, len(f.entries())-before, 1, "the history has changes only")
		require.Equal(t, "Maximum", f.svc.Live("app_1")["reg_1"].GetLimit())
	})
}

func TestService_OneWriter(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		f.report(6*time.Minute, 20)
		// A process without the region's stream decides nothing. When it has the stream again, its windows are empty.
		f.set(func() { f.held = false })
		f.report(2*time.Minute, 100)
		require.EqualValues(t, 2, f.replicas("app_1"))
		require.Empty(t, f.svc.Live("app_1"))
		require.NotEmpty(t, f.passed, "loads go to the process that has the stream")
		f.set(func() { f.held = true; f.passed = nil })
		f.report(4*time.Minute, 1)
		require.EqualValues(t, 2, f.replicas("app_1"), "the window is not full yet")
		require.Empty(t, f.passed)
		f.report(3*time.Minute, 1)
		require.EqualValues(t, 1, f.replicas("app_1"))
		// The service accepts the number that another writer set.
		f.set(func() {
			f.apps["app_1"].Regions["reg_1"] = model.ScaledRegion{Name: "us-east-1", Replicas: 6, Counted: 6, Generation: 50, Instances: 1}
		})
		f.svc.Changed([]string{"app_1"})
		f.report(time.Minute, 60)
		require.EqualValues(t, 6, f.replicas("app_1"))
	})
}

func TestService_CurrentIsNeverOld(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		require.Nil(t, f.svc.Current("reg_1", "app_1"))
		f.report(time.Minute, 21)
		got := f.svc.Current("reg_1", "app_1")
		require.InDelta(t, 21, got.GetWants()[0].GetValue(), 1e-9)
		require.Nil(t, f.svc.Current("reg_2", "app_1"))
		require.Nil(t, f.svc.Current("reg_1", "app_2"))
		f.set(func() { f.held = false })
		require.Nil(t, f.svc.Current("reg_1", "app_1"), "another process has the region's stream")
		f.set(func() { f.held = true })
		f.report(time.Minute, 21)
		time.Sleep(scaling.Fresh - 6*time.Second)
		require.NotNil(t, f.svc.Current("reg_1", "app_1"))
		time.Sleep(7 * time.Second)
		require.Nil(t, f.svc.Current("reg_1", "app_1"), "the region does not report any more")
	})
}

func TestService_HoldsAndAdvice(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		f.set(func() {
			f.apps["app_1"].Scaling.Holds = []model.ScalingHold{{Replicas: 2, Until: time.Now().Add(time.Hour).UnixMilli()}}
		})
		f.report(59*time.Minute, 90)
		require.EqualValues(t, 2, f.replicas("app_1"))
		require.Equal(t, "Hold", f.svc.Live("app_1")["reg_1"].GetLimit())
		f.report(10*time.Minute, 90)
		require.EqualValues(t, 9, f.replicas("app_1"))
		f.set(func() { f.apps["app_1"].Scaling.Policy.Mode = windlassv1.ScalingPolicy_MODE_ADVISE })
		f.svc.Changed([]string{"app_1"})
		f.report(time.Hour, 10)
		require.EqualValues(t, 9, f.replicas("app_1"))
		require.Less(t, f.svc.Live("app_1")["reg_1"].GetWanted(), int32(9))
	})
}

func TestService_Failures(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		require.Zero(t, f.svc.Observe("reg_1", []*agentv1.LoadReport{{AppId: "app_plain"}}))
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, f.svc.Observe("reg_1", []*agentv1.LoadReport{{AppId: "app_plain"}}))

		f.set(func() { f.err = errors.New("database away") })
		f.report(2*time.Minute, 90)
		require.EqualValues(t, 2, f.replicas("app_1"))
		f.set(func() {
			f.err = rpc.ErrorWith(connect.CodeResourceExhausted, &windlassv1.ErrorDetail{
				Reason: windlassv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED, Limit: &windlassv1.LimitDetail{Name: "instances", Max: 8, Used: 7, Asked: 2},
			}, "too many")
		})
		f.report(time.Minute, 90)
		f.set(func() { f.err = nil })
		require.Equal(t, "Quota", f.svc.Live("app_1")["reg_1"].GetLimit())
		f.report(30*time.Second, 90)
		require.EqualValues(t, 3, f.replicas("app_1"), "the quota has room for one")
		f.report(5*time.Minute, 90)
		require.EqualValues(t, 9, f.replicas("app_1"), "the write is tried again")
		require.NotContains(t, slices.Compact(f.entries()), "")
	})
}

func TestService_LostNudges(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		f.report(6*time.Minute, 500)
		require.EqualValues(t, 10, f.replicas("app_1"))
		f.set(func() {
			f.apps["app_1"].Scaling.Policy = proto.CloneOf(f.apps["app_1"].Scaling.Policy)
			f.apps["app_1"].Scaling.Policy.Max = 20
			f.apps["app_1"].Scaling.UpdatedAt++
		})
		f.report(2*time.Minute, 500)
		require.EqualValues(t, 20, f.replicas("app_1"), "another process's change is found without a nudge")
		plain := []*agentv1.LoadReport{{AppId: "app_plain"}}
		f.svc.Observe("reg_1", plain)
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, f.svc.Observe("reg_1", plain))
		time.Sleep(time.Minute)
		require.Zero(t, f.svc.Observe("reg_1", plain), "the app may scale by now")
	})
}

func TestService_Refusals(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		var log bytes.Buffer
		f.svc.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		f.set(func() {
			f.err = rpc.Error(connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_NO_CAPACITY, "replicas", "the port is taken")
		})
		f.report(3*time.Minute, 90)
		synctest.Wait()
		require.NotContains(t, log.String(), "WARN")
		refused := strings.Count(log.String(), "scaling decision refused")
		require.Positive(t, refused)
		require.LessOrEqual(t, refused, 4, "the write is tried again after a minute")
	})
}

func TestService_SaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	play(t, 4, func(t *testing.T, f *harness) {
		f.set(func() { f.err = errors.New("database away") })
		for look := range 10 * 12 {
			if look == 7*12 {
				f.set(func() { f.err = nil })
			}
			f.svc.Observe("reg_1", []*agentv1.LoadReport{{AppId: "app_1", Deployments: []*agentv1.DeploymentLoad{{DeploymentId: "dep_1", Ready: 4}}}})
			time.Sleep(5 * time.Second)
		}
		require.Equal(t, []string{"ScalingMetricMissing"}, f.entries(), "the entry is written once the database is back")
		require.EqualValues(t, 4, f.replicas("app_1"))
	})
}

// After a rollback, the engine may lack a metric of the policy. The policy is then kept, and the status says why the
// number does not go down.
func TestService_SaysThatTheEngineLacksAMetric(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		engine  []*windlassv1.EngineMetric
		problem string
	}{
		"no metric of the cache": {[]*windlassv1.EngineMetric{{Signal: "queue"}}, "no preset names a metric for it in the engine of v7"},
		"not measured yet":       {[]*windlassv1.EngineMetric{{Signal: "cache"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, 4, func(t *testing.T, f *harness) {
				f.set(func() {
					a := f.apps["app_1"]
					a.Version, a.EngineMetrics = 7, c.engine
					a.Scaling.Policy.Metrics = []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_KV_CACHE, Target: "0.8"}}
					a.Scaling.UpdatedAt++
				})
				f.svc.Changed([]string{"app_1"})
				f.report(30*time.Second, 8)
				shown := f.svc.Current("reg_1", "app_1")
				require.NotNil(t, shown)
				require.Nil(t, shown.GetWants()[0].Value)
				require.Equal(t, c.problem, shown.GetWants()[0].GetProblem())
			})
		})
	}
}

func TestService_SaysWhyAgentsCannotMeasure(t *testing.T) {
	t.Parallel()
	play(t, 4, func(t *testing.T, f *harness) {
		f.set(func() {
			a := f.apps["app_1"]
			a.Scaling.Policy.Metrics = []*windlassv1.ScalingMetric{{Type: windlassv1.ScalingMetric_TYPE_CPU, Target: "70"}}
			a.Scaling.UpdatedAt++
		})
		f.svc.Changed([]string{"app_1"})
		observe := func(levels map[string]float64, problems map[string]string) *windlassv1.MetricWant {
			t.Helper()
			f.svc.Observe("reg_1", []*agentv1.LoadReport{{
				AppId: "app_1", At: time.Now().UnixMilli(), Problems: problems,
				Deployments: []*agentv1.DeploymentLoad{{DeploymentId: "dep_1", Ready: 4, Levels: levels}},
			}})
			time.Sleep(5 * time.Second)
			shown := f.svc.Current("reg_1", "app_1")
			require.NotNil(t, shown)
			return shown.GetWants()[0]
		}
		problems := map[string]string{"cpu": "the cluster has no metrics API"}
		require.Equal(t, "the cluster has no metrics API", observe(nil, problems).GetProblem())
		require.Empty(t, observe(map[string]float64{"cpu": 60}, problems).GetProblem(), "other deployments lack the value")
		require.Empty(t, observe(nil, nil).GetProblem())
	})
}

func TestService_OlderLoadsAreIgnored(t *testing.T) {
	t.Parallel()
	play(t, 2, func(t *testing.T, f *harness) {
		at := time.Now().UnixMilli()
		observe := func(at int64, inFlight float64) {
			require.Zero(t, f.svc.Observe("reg_1", []*agentv1.LoadReport{{
				AppId: "app_1", At: at, Deployments: []*agentv1.DeploymentLoad{{DeploymentId: "dep_1", Ready: 2, InFlight: &inFlight}},
			}}))
		}
		value := func() float64 {
			time.Sleep(2 * time.Second)
			return f.svc.Current("reg_1", "app_1").GetWants()[0].GetValue()
		}
		observe(at, 12)
		observe(at-1000, 99)
		require.InDelta(t, 12, value(), 1e-9, "before a step")
		observe(at-1, 99)
		require.InDelta(t, 12, value(), 1e-9, "after a step")
		observe(at+1, 13)
		require.InDelta(t, 13, value(), 1e-9)
		time.Sleep(lateFor)
		observe(at-3_600_000, 14)
		require.Greater(t, value(), 13.1, "the agent's clock was set back")
	})
}
