package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/ingest"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	east, west = "reg_east", "reg_west"
	ttl        = 15 * time.Second
	ready      = windlassv1.InstanceStatus_INSTANCE_STATUS_READY
)

type callerKey struct{}

// harness is ingest with the in-memory store: app_1 runs dep_1 in the east, and app_2 runs dep_2 in the west.
type harness struct {
	t    testing.TB
	db   *memory.Store
	svc  *ingest.Service
	stop func()
	// registry has the service's metrics. loads has the loads that it passed on, by region.
	registry *prometheus.Registry
	loads    map[string][]*agentv1.LoadReport
}

// faulty is a store whose transactions a test can make fail.
type faulty struct {
	store.Bound[ingest.Tx]
	fail func() error
	wrap func(ingest.Tx) ingest.Tx
}

func (f faulty) Update(ctx context.Context, fn func(ingest.Tx) error) error {
	if f.fail != nil {
		if err := f.fail(); err != nil {
			return err
		}
	}
	return f.Bound.Update(ctx, func(tx ingest.Tx) error {
		if f.wrap != nil {
			tx = f.wrap(tx)
		}
		return fn(tx)
	})
}

func setup(t testing.TB, change ...func(*faulty)) *harness {
	db := memory.New(func() int64 { return time.Now().UnixMilli() })
	f := faulty{Bound: store.Bind[ingest.Tx](db)}
	for _, c := range change {
		c(&f)
	}
	registry, loads := prometheus.NewRegistry(), map[string][]*agentv1.LoadReport{}
	svc, err := ingest.New(ingest.Config{
		Store: f,
		Loads: func(region string, reports []*agentv1.LoadReport) (unknown int) {
			for _, r := range reports {
				if region == east && r.AppId == "app_1" {
					loads[region] = append(loads[region], r)
				} else {
					unknown++
				}
			}
			return unknown
		},
		Caller: func(ctx context.Context) (string, int64, bool) {
			id, ok := ctx.Value(callerKey{}).(string)
			return id, 10, ok
		},
		Edges: rollup.Edges, RouteEdges: rollup.RouteEdges,
		Log: slog.New(slog.DiscardHandler), Registerer: registry, Lease: func() time.Duration { return ttl },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	var stopped atomic.Bool
	h := &harness{t: t, db: db, svc: svc, registry: registry, loads: loads, stop: func() {
		if !stopped.Swap(true) {
			cancel()
			require.NoError(t, <-done)
		}
	}}
	t.Cleanup(h.stop)
	h.update(func(tx store.Tx) error {
		for i, region := range []string{east, west} {
			n := fmt.Sprint(i + 1)
			if err := errors.Join(
				tx.InsertRegion(model.Region{ID: region, Name: region, ResourceVersion: 1}),
				tx.InsertWorkspace(model.Workspace{ID: "ws_" + n, Name: "w" + n, ResourceVersion: 1}),
				tx.InsertApp(model.App{ID: "app_" + n, WorkspaceID: "ws_" + n, EnvironmentID: "env_" + n, Name: "a", ResourceVersion: 1}),
				tx.InsertDeployment(model.Deployment{ID: "dep_" + n, WorkspaceID: "ws_" + n, AppID: "app_" + n, Version: 1, Spec: &windlassv1.DeploymentSpec{}}),
				tx.PutTopology([]model.Topology{{
					WorkspaceID: "ws_" + n, AppID: "app_" + n, DeploymentID: "dep_" + n, RegionID: region, Replicas: 1, Generation: 1,
					Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING,
				}}),
				tx.PutRoutes([]model.Route{{WorkspaceID: "ws_" + n, AppID: "app_" + n, RegionID: region, Generation: 1, Hosts: []string{"a" + n}}}),
			); err != nil {
				return err
			}
		}
		return nil
	})
	h.session(east, "session-1")
	h.session(west, "session-w")
	return h
}

func (h *harness) update(fn func(store.Tx) error) {
	h.t.Helper()
	require.NoError(h.t, h.db.Update(context.Background(), fn))
}

func read[T any](h *harness, fn func(store.Tx) (T, error)) (out T) {
	h.t.Helper()
	require.NoError(h.t, h.db.View(context.Background(), func(tx store.Tx) (err error) {
		out, err = fn(tx)
		return err
	}))
	return out
}

// session starts a session and returns its fence.
func (h *harness) session(region, id string) (fence int64) {
	h.t.Helper()
	h.update(func(tx store.Tx) error {
		r, _, err := tx.StartSession(region, id, ttl.Milliseconds(), model.Region{})
		fence = r.SessionFence
		return err
	})
	return fence
}

func (h *harness) report(region string, req *agentv1.ReportRequest) error {
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), callerKey{}, region), time.Hour)
	defer cancel()
	_, err := h.svc.Report(ctx, req)
	return err
}

func (h *harness) row() model.Region {
	return read(h, func(tx store.Tx) (model.Region, error) { return tx.GetRegion(east) })
}

func (h *harness) instance(id string) (model.Instance, bool) {
	var i model.Instance
	err := h.db.View(context.Background(), func(tx store.Tx) (err error) {
		i, err = tx.GetInstance("ws_1", id)
		return err
	})
	return i, err == nil
}

func (h *harness) observed() model.Observed {
	rows := read(h, func(tx store.Tx) ([]model.Observed, error) { return tx.ListObserved([]string{"app_1"}) })
	if len(rows) == 0 {
		return model.Observed{}
	}
	require.Len(h.t, rows, 1)
	return rows[0]
}

// woken returns the apps whose wake-ups are due, and clears these.
func (h *harness) woken() (apps []string) {
	h.update(func(tx store.Tx) error {
		apps = nil
		rows, err := tx.DueWakes(0, 0, 100)
		for _, w := range rows {
			apps = append(apps, w.AppID)
			err = errors.Join(err, tx.ClearWakes([]string{w.AppID}))
		}
		return err
	})
	return apps
}

// says returns a report of the east's first session.
func says(sequence int64, change ...func(*agentv1.ReportRequest)) *agentv1.ReportRequest {
	req := &agentv1.ReportRequest{SessionId: "session-1", Epoch: 1, Fence: 1, Sequence: sequence, ReceivedRevision: sequence}
	for _, c := range change {
		c(req)
	}
	return req
}

func has(deployment string, status windlassv1.InstanceStatus, ids ...string) func(*agentv1.ReportRequest) {
	return func(r *agentv1.ReportRequest) {
		for _, id := range ids {
			r.Instances = append(r.Instances, &agentv1.InstanceState{Id: id, DeploymentId: deployment, Status: status})
		}
	}
}

func counts(deployment string, ready int32) func(*agentv1.ReportRequest) {
	return func(r *agentv1.ReportRequest) {
		r.Rollups = append(r.Rollups, &agentv1.DeploymentRollup{DeploymentId: deployment, Generation: 1, Ready: ready, ReadyReplicas: ready})
	}
}

func applied(deployment string) func(*agentv1.ReportRequest) {
	return func(r *agentv1.ReportRequest) {
		r.Applied = append(r.Applied, &agentv1.AppliedState{
			Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: deployment, Epoch: 1, Generation: 1, Phase: agentv1.AppliedState_PHASE_APPLIED,
		})
	}
}

func inventory(since int64) func(*agentv1.ReportRequest) {
	return func(r *agentv1.ReportRequest) {
		r.InventoryBegin, r.InventoryEnd, r.InventorySince = r.Sequence == since, true, since
	}
}

func TestReport_OfAnOlderSessionStoresNothing(t *testing.T) {
	h := setup(t)
	require.NoError(t, h.report(east, says(1, has("dep_1", ready, "ins_1"))))
	require.EqualValues(t, 2, h.session(east, "session-2"))
	before := h.row()

	for _, req := range []*agentv1.ReportRequest{
		says(2, has("dep_1", ready, "ins_2"), counts("dep_1", 9), applied("dep_1")),
		says(3), // a heartbeat, after the new session is cached
		says(4, inventory(4)),
	} {
		err := h.report(east, req)
		require.Equal(t, connect.CodeFailedPrecondition, connect.CodeOf(err), req.Sequence)
		require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, rpc.ReasonOf(err), req.Sequence)
	}
	_, stored := h.instance("ins_2")
	require.False(t, stored)
	i, _ := h.instance("ins_1")
	require.Equal(t, ready, i.Status)
	require.Equal(t, model.Observed{}, h.observed())
	require.Equal(t, before, h.row(), "the lease is not renewed either")
}

func TestSession_SeesAConcurrentReportCompletelyOrNotAtAll(t *testing.T) {
	var h *harness
	var once atomic.Bool
	h = setup(t, func(f *faulty) {
		f.wrap = func(tx ingest.Tx) ingest.Tx {
			return takeover{tx, func() {
				if once.Swap(true) {
					return
				}
				h.session(east, "session-2")
			}}
		}
	})
	err := h.report(east, says(1, has("dep_1", ready, "ins_1")))
	require.Equal(t, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, rpc.ReasonOf(err))
	_, stored := h.instance("ins_1")
	require.False(t, stored)
}

// takeover is a store that calls its function happen after the check of the sessions and before all other queries.
type takeover struct {
	ingest.Tx
	happen func()
}

func (t takeover) CheckSessions(ids []string) ([]model.Region, error) {
	rows, err := t.Tx.CheckSessions(ids)
	t.happen()
	return rows, err
}

func TestReport_RepeatedOrLateChangesNothing(t *testing.T) {
	h := setup(t)
	first := says(1, has("dep_1", ready, "ins_1"), counts("dep_1", 1), applied("dep_1"))
	second := says(2, has("dep_1", windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, "ins_1"), counts("dep_1", 0))
	require.NoError(t, h.report(east, first))
	require.Equal(t, []string{"app_1"}, h.woken())
	require.NoError(t, h.report(east, second))
	require.Equal(t, []string{"app_1"}, h.woken())
	o, i := h.observed(), func() model.Instance { i, _ := h.instance("ins_1"); return i }

	was := i()
	require.NoError(t, h.report(east, second))
	require.NoError(t, h.report(east, first))
	require.Equal(t, o, h.observed())
	require.Equal(t, was, i())
	require.Empty(t, h.woken())
}

func TestReport_LateReportRestoresNothing(t *testing.T) {
	h := setup(t)
	lost := says(1, has("dep_1", ready, "ins_gone"), counts("dep_1", 1))
	// The report was not answered, so the agent reported everything again. Meanwhile, the instance had ended.
	require.NoError(t, h.report(east, says(2, inventory(2), counts("dep_1", 0))))
	require.Equal(t, []string{"app_1"}, h.woken())
	before := h.row()
	require.NoError(t, h.report(east, lost))
	_, stored := h.instance("ins_gone")
	require.False(t, stored, "no later report would remove it")
	require.Zero(t, h.observed().Ready)
	require.Empty(t, h.woken())
	require.Equal(t, before.SessionSequence, h.row().SessionSequence)
}

func TestReport_LateReportDoesNotChangeTheQuarantine(t *testing.T) {
	h := setup(t)
	quarantine := func(keys ...string) func(*agentv1.ReportRequest) {
		return func(r *agentv1.ReportRequest) {
			r.QuarantineComplete = true
			for _, key := range keys {
				r.Quarantined = append(r.Quarantined, &agentv1.QuarantinedKey{Key: key})
			}
		}
	}
	kept := func() (keys []string) {
		require.NoError(t, h.db.View(t.Context(), func(tx store.Tx) error {
			rows, err := tx.ListQuarantine(east, model.Page{Limit: 9})
			for _, q := range rows {
				keys = append(keys, q.Key)
			}
			return err
		}))
		return keys
	}
	none, some := says(1, quarantine()), says(2, quarantine("dep_8"))
	require.NoError(t, h.report(east, none))
	require.NoError(t, h.report(east, some))
	require.NoError(t, h.report(east, none))
	require.Equal(t, []string{"dep_8"}, kept(), "the unknown workload must stay in quarantine")
	require.NoError(t, h.report(east, says(3, quarantine())))
	require.NoError(t, h.report(east, some))
	require.Empty(t, kept())
}

func TestWake_OnlyEdgesWakeAnApp(t *testing.T) {
	h := setup(t)
	require.NoError(t, h.report(east, says(1, counts("dep_1", 1), applied("dep_1"))))
	require.Equal(t, []string{"app_1"}, h.woken())
	require.NoError(t, h.report(east, says(2, counts("dep_1", 1), applied("dep_1"), has("dep_1", ready, "ins_1"))))
	require.Empty(t, h.woken(), "the same report again")

	route := func(r *agentv1.ReportRequest) {
		r.Applied = append(r.Applied, &agentv1.AppliedState{
			Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Key: "app_1", Epoch: 1, Generation: 1, Phase: agentv1.AppliedState_PHASE_APPLIED,
		})
	}
	require.NoError(t, h.report(east, says(3, route)))
	require.Equal(t, []string{"app_1"}, h.woken())
	require.NoError(t, h.report(east, says(4, route)))
	require.Empty(t, h.woken(), "an acknowledgement without a change")
}

func TestReport_WakeUpIsDelayedIfNoRolloutWaits(t *testing.T) {
	h := setup(t)
	woken := make(chan map[string]time.Duration, 10)
	h.db.OnCommit(func(c store.Commit) {
		if len(c.Woken) > 0 {
			woken <- c.Woken
		}
	})
	place := func(status windlassv1.TopologyStatus) {
		h.update(func(tx store.Tx) error {
			rows, err := tx.LockTopology("app_1")
			if err != nil {
				return err
			}
			rows[0].Status = status
			return errors.Join(tx.PutTopology(rows), tx.ClearWakes([]string{"app_1"}))
		})
	}
	place(windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED)
	require.NoError(t, h.report(east, says(1, counts("dep_1", 1), applied("dep_1"))))
	in := (<-woken)["app_1"]
	require.Positive(t, in)
	require.LessOrEqual(t, in, store.WakeWindow)

	require.NoError(t, h.report(east, says(2, counts("dep_1", 2))))
	require.Empty(t, woken, "no wake-up in addition to the first")

	for n, status := range []windlassv1.TopologyStatus{windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING} {
		place(status)
		require.NoError(t, h.report(east, says(int64(3+n), counts("dep_1", int32(3+n)))))
		require.Equal(t, map[string]time.Duration{"app_1": 0}, <-woken, "a deployment that starts or stops wakes its app at once")
	}

	place(windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED)
	h.update(func(tx store.Tx) error {
		app, err := tx.LockApp("ws_1", "app_1")
		app.RolloutID = "rol_1"
		return errors.Join(err, tx.UpdateApp(app))
	})
	require.NoError(t, h.report(east, says(5, counts("dep_1", 5))))
	require.Equal(t, map[string]time.Duration{"app_1": 0}, <-woken, "with a rollout in flight, the app is woken at once")
}

func TestInventory_EndResetsInstancesThatItDidNotName(t *testing.T) {
	h := setup(t)
	require.NoError(t, h.report(east, says(1, has("dep_1", ready, "ins_1", "ins_2"), counts("dep_1", 2), applied("dep_1"))))
	require.EqualValues(t, 2, h.session(east, "session-2"))
	h.woken()

	of := func(req *agentv1.ReportRequest) *agentv1.ReportRequest {
		req.SessionId, req.Fence = "session-2", 2
		return req
	}
	begin := of(says(1, has("dep_1", ready, "ins_2")))
	begin.InventoryBegin = true
	require.NoError(t, h.report(east, begin))
	i, _ := h.instance("ins_1")
	require.Equal(t, ready, i.Status, "the instance is not lost before the end")

	require.NoError(t, h.report(east, of(says(2, has("dep_1", ready, "ins_3"), inventory(1)))))
	i, _ = h.instance("ins_1")
	require.Equal(t, windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED, i.Status)
	require.Equal(t, "Lost", i.Reason)
	for _, id := range []string{"ins_2", "ins_3"} {
		i, _ = h.instance(id)
		require.Equal(t, ready, i.Status, id)
	}
	require.Zero(t, h.observed().ReadyReplicas)
	require.Equal(t, int32(agentv1.AppliedState_PHASE_PENDING), h.observed().Phase)
	require.Equal(t, []string{"app_1"}, h.woken())

	err := h.report(east, of(says(3, inventory(4))))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "an inventory cannot begin after its end")
}

func TestReport_OfAnotherRegionsDeploymentIsRefused(t *testing.T) {
	h := setup(t)
	require.NoError(t, h.report(east, says(1, has("dep_2", ready, "ins_2"), counts("dep_2", 5), applied("dep_2"), applied("dep_9"),
		func(r *agentv1.ReportRequest) {
			r.Applied = append(r.Applied, &agentv1.AppliedState{Kind: agentv1.ItemKind_ITEM_KIND_ROUTES, Key: "app_2", Epoch: 1, Generation: 1})
		})))
	require.Empty(t, read(h, func(tx store.Tx) ([]model.Observed, error) { return tx.ListObserved([]string{"app_1", "app_2"}) }))
	require.Empty(t, read(h, func(tx store.Tx) ([]model.RouteObserved, error) { return tx.ListRouteObserved([]string{"app_2"}) }))
	require.Empty(t, read(h, func(tx store.Tx) ([]model.Instance, error) {
		return tx.ListInstances(model.InstanceFilter{IncludeTerminated: true}, model.Page{Limit: 10})
	}))
	require.Empty(t, h.woken())
}

func TestCredential_RevokedIsRefused(t *testing.T) {
	h := setup(t)
	require.NoError(t, h.report(east, says(1)))
	h.update(func(tx store.Tx) error {
		r, err := tx.LockRegion(east)
		r.CredentialNotBefore = 11
		return errors.Join(err, tx.UpdateRegion(r))
	})
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(h.report(east, says(2, counts("dep_1", 1)))))
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(h.report(east, says(3))), "a heartbeat is refused as well")
}

func TestReport_WithTooLongTextsIsStored(t *testing.T) {
	h := setup(t)
	require.NoError(t, h.report(east, says(1,
		has("dep_1", ready, "ins_1", "", "ins ü", strings.Repeat("x", 65)),
		has("dep_1", 99, "ins_future"),
		func(r *agentv1.ReportRequest) {
			r.Instances[0].Message = strings.Repeat("é", 3000)
			r.Rollups = []*agentv1.DeploymentRollup{{DeploymentId: "dep_1", Ready: -3, Message: strings.Repeat("é", 3000)}}
			r.QuarantineComplete = true
			r.Quarantined = []*agentv1.QuarantinedKey{{Key: "dep_8"}, {Key: "dep_8"}, {Key: "ö"}, {Key: ""}}
			r.Capacity = &agentv1.Capacity{CpuMillicores: 7, Notes: []string{strings.Repeat("n", 1<<20)}}
		})))
	all := read(h, func(tx store.Tx) ([]model.Instance, error) {
		return tx.ListInstances(model.InstanceFilter{IncludeTerminated: true}, model.Page{Limit: 10})
	})
	require.Len(t, all, 1)
	require.Equal(t, strings.Repeat("é", 512), all[0].Message)
	require.Zero(t, h.observed().Ready)
	require.Len(t, read(h, func(tx store.Tx) ([]model.Quarantined, error) { return tx.ListQuarantine(east, model.Page{Limit: 9}) }), 1)
	require.Less(t, len(h.row().Capacity), 1<<10)
}

func TestReport_BadReportFailsAlone(t *testing.T) {
	open := make(chan struct{})
	h := setup(t, func(f *faulty) {
		f.wrap = func(tx ingest.Tx) ingest.Tx { return poisoned{tx, open} }
	})
	errs := make(chan error, 3)
	// The first reports keep both workers busy until the other reports are queued.
	for range 2 {
		go func() {
			errs <- h.report(west, &agentv1.ReportRequest{SessionId: "session-w", Epoch: 1, Fence: 1, Sequence: 1, QuarantineComplete: true})
		}()
	}
	poison := make(chan error, 1)
	go func() { poison <- h.report(east, says(1, has("dep_1", ready, "ins_poison"))) }()
	close(open)
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(<-poison))
	require.NoError(t, h.report(east, says(2, has("dep_1", ready, "ins_1"))), "the next report of the region is stored")
}

type poisoned struct {
	ingest.Tx
	open chan struct{}
}

func (p poisoned) CheckSessions(ids []string) ([]model.Region, error) {
	<-p.open
	return p.Tx.CheckSessions(ids)
}

func (p poisoned) PutInstances(rows []model.Instance) error {
	for _, i := range rows {
		if i.ID == "ins_poison" {
			return errors.New("data too long for column")
		}
	}
	return p.Tx.PutInstances(rows)
}

func TestQueue_AnswersItsReportsWhenItStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t, func(f *faulty) {
			f.fail = func() error { time.Sleep(time.Minute); return errors.New("database is away") }
		})
		start := time.Now()
		// The maximum number of waiting reports of one region.
		errs := make(chan error, 2)
		for sequence := range int64(2) {
			go func() { errs <- h.report(east, says(sequence+1, counts("dep_1", 1))) }()
		}
		synctest.Wait()
		h.stop()
		for range 2 {
			require.Equal(t, connect.CodeUnavailable, connect.CodeOf(<-errs))
		}
		require.LessOrEqual(t, time.Since(start), time.Minute, "reports wait at most for the running batch")
		require.Equal(t, connect.CodeUnavailable, connect.CodeOf(h.report(east, says(11, counts("dep_1", 1)))), "later reports are refused at once")
	})
}

func TestOverload_SlowsAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Int64
		h := setup(t, func(f *faulty) {
			f.fail = func() error { time.Sleep(time.Duration(slow.Load())); return nil }
		})
		defer h.stop()
		require.Equal(t, 200*time.Millisecond, h.svc.Limits().MinInterval.AsDuration())
		slow.Store(int64(5 * time.Second))
		sequence := int64(0)
		for range 10 {
			sequence++
			require.NoError(t, h.report(east, says(sequence, counts("dep_1", 1))))
		}
		require.Equal(t, 4*time.Second, h.svc.Limits().MinInterval.AsDuration(), "the interval is always short enough to renew leases")
		slow.Store(0)
		for range 30 {
			sequence++
			require.NoError(t, h.report(east, says(sequence, counts("dep_1", 1))))
		}
		require.Equal(t, 200*time.Millisecond, h.svc.Limits().MinInterval.AsDuration())
	})
}
