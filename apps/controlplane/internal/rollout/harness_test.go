package rollout_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/pkg/ident"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// harness is the workflow's part of a control plane over the in-memory store, with
// callers and agents that write what the real ones write. Everything in it is
// driven by commits; it runs inside a synctest bubble.
type harness struct {
	t        *testing.T
	store    *memory.Store
	stepper  *rollout.Stepper
	registry *prometheus.Registry
	images   *images
	ws       string
	regions  map[string]string // id by name
	agents   map[string]*agent
	working  sync.WaitGroup // agents
	gauge    *gauge
	judge    *judge
	step     atomic.Pointer[rollout.Step]
	// policy of rollouts, nil for none.
	policy *windlassv1.RolloutPolicy
}

type images struct {
	mu      sync.Mutex
	answers []error
	asked   int
	// logins are those of the last call.
	logins []string
}

// Resolve returns the errors in answers, in turn, and then resolves every tag.
func (i *images) Resolve(_ context.Context, image string, logins []string) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked++
	i.logins = logins
	if len(i.answers) > 0 {
		err := i.answers[0]
		i.answers = i.answers[1:]
		return "", err
	}
	name, _, _ := strings.Cut(image, ":")
	return name + "@sha256:" + strings.Repeat("0", 64), nil
}

func (i *images) lastLogins() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.logins
}

func newHarness(t *testing.T, spans sdktrace.SpanProcessor, regions ...string) *harness {
	h := &harness{
		t: t, store: memory.New(func() int64 { return time.Now().UnixMilli() }),
		registry: prometheus.NewRegistry(), images: &images{}, gauge: &gauge{}, judge: &judge{}, ws: ident.New("ws"),
		regions: map[string]string{}, agents: map[string]*agent{},
	}
	provider := sdktrace.NewTracerProvider()
	if spans != nil {
		provider.RegisterSpanProcessor(spans)
	}
	var err error
	h.stepper, err = rollout.NewStepper(rollout.Config{
		Store: store.Bind[rollout.Tx](h.store), Images: h.images, Metrics: h.gauge, Hooks: h.judge,
		Logins: func(_ context.Context, app model.App, names []string) (out []string, _ error) {
			for _, n := range names {
				out = append(out, app.Name+"'s "+n)
			}
			return out, nil
		},
		Log: discard(), Registerer: h.registry, Tracer: provider.Tracer("test"),
	})
	require.NoError(t, err)
	for _, name := range regions {
		id := ident.New("reg")
		h.regions[name] = id
		h.update(func(tx store.Tx) error {
			if err := tx.InsertRegion(model.Region{ID: id, WorkspaceID: h.ws, Name: name, ResourceVersion: 1}); err != nil {
				return err
			}
			_, _, err := tx.StartSession(id, "session-1", time.Hour.Milliseconds(), model.Region{})
			return err
		})
		h.agents[name] = &agent{harness: h, region: id, behave: wellBehaved}
	}
	return h
}

// setStep makes the driver call another step from now on.
func (h *harness) setStep(step rollout.Step) { h.step.Store(&step) }

// run starts the driver and its helpers. stop ends them as the death of the process would.
func (h *harness) run(driver func(rollout.Step) rollout.Driver, agents bool) (stop func()) {
	h.setStep(h.stepper.Step)
	d := driver(func(ctx context.Context, id string) error { return (*h.step.Load())(ctx, id) })
	waker := rollout.NewWaker(discard())
	sweeper, err := rollout.NewSweeper(rollout.SweeperConfig{
		Store: store.Bind[rollout.SweepTx](h.store), Log: discard(), Registerer: prometheus.NewRegistry(),
	})
	require.NoError(h.t, err)
	h.store.OnCommit(func(c store.Commit) {
		waker.Notify(c.Woken)
		for _, a := range h.agents {
			if agents && c.Revisions[a.region] != 0 {
				a.nudge()
			}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context, rollout.Driver) error{waker.Run, sweeper.Run} {
		wg.Go(func() { _ = run(ctx, d) }) // ends with ctx, always nil
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	h.t.Cleanup(func() {
		stop()
		for _, a := range h.agents {
			a.setAway(true)
		}
		h.working.Wait()
	})
	return stop
}

func (h *harness) runInMemory() (stop func()) {
	var memory *rollout.Memory
	end := h.run(func(step rollout.Step) rollout.Driver {
		memory = rollout.NewMemory(step, discard())
		h.t.Cleanup(memory.Close)
		return memory
	}, true)
	return func() {
		end()
		memory.Close()
	}
}

func (h *harness) update(fn func(store.Tx) error) {
	h.t.Helper()
	require.NoError(h.t, h.store.Update(context.Background(), fn))
}

func (h *harness) view(fn func(store.Tx) error) {
	h.t.Helper()
	require.NoError(h.t, h.store.View(context.Background(), fn))
}

func (h *harness) newApp(name string) string {
	id := ident.New("app")
	h.update(func(tx store.Tx) error {
		return tx.InsertApp(model.App{
			ID: id, WorkspaceID: h.ws, EnvironmentID: "env", Name: name, Replicas: 2,
			Status: windlassv1.AppStatus_APP_STATUS_IDLE, ResourceVersion: 1,
		})
	})
	return id
}

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// deploy writes what the API writes.
func (h *harness) deploy(appID string, change func(*windlassv1.DeploymentSpec)) string {
	spec := &windlassv1.DeploymentSpec{Command: []string{"serve"}, Replicas: proto.Int32(2)}
	for name := range h.regions {
		spec.Regions = append(spec.Regions, name)
	}
	if change != nil {
		change(spec)
	}
	dep, rol := ident.New("dep"), ident.New("rol")
	now := time.Now().UnixMilli()
	h.update(func(tx store.Tx) error {
		app, err := tx.LockApp(h.ws, appID)
		if err != nil {
			return err
		}
		if app.RolloutID != "" {
			r, err := tx.GetRollout(h.ws, app.RolloutID)
			if err != nil {
				return err
			}
			r.Status, r.FinishedAt = windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED, now
			if err := tx.UpdateRollout(r); err != nil {
				return err
			}
		}
		if h.policy != nil {
			rows, err := tx.ListTopology([]string{appID})
			if err != nil {
				return err
			}
			s := model.RolloutState{AppID: appID, WorkspaceID: h.ws, Policy: h.policy}
			s.Progress = plan.NextProgress(s, app, rows, rol, plan.Asked{})
			if err := tx.PutRolloutState(s); err != nil {
				return err
			}
		}
		app.LatestVersion++
		app.RolloutID = rol
		if err := tx.InsertDeployment(model.Deployment{
			ID: dep, WorkspaceID: h.ws, AppID: appID, Version: app.LatestVersion, Spec: spec,
			Status: windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING, CreatedAt: now,
		}); err != nil {
			return err
		}
		if err := tx.InsertRollout(model.Rollout{
			ID: rol, WorkspaceID: h.ws, AppID: appID, DeploymentID: dep, Version: app.LatestVersion,
			Status:      windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING,
			Traceparent: traceparent, CreatedAt: now, Deadline: now + (10 * time.Minute).Milliseconds(),
		}); err != nil {
			return err
		}
		if err := tx.UpdateApp(app); err != nil {
			return err
		}
		return tx.Wake([]string{appID}, now, now)
	})
	return dep
}

// change locks the app, lets f change it and wakes its workflow.
func (h *harness) change(appID string, f func(*model.App)) {
	now := time.Now().UnixMilli()
	h.update(func(tx store.Tx) error {
		app, err := tx.LockApp(h.ws, appID)
		if err != nil {
			return err
		}
		f(&app)
		if err := tx.UpdateApp(app); err != nil {
			return err
		}
		return tx.Wake([]string{appID}, now, now)
	})
}

func (h *harness) app(id string) (app model.App) {
	h.view(func(tx store.Tx) (err error) { app, err = tx.GetApp(h.ws, id); return err })
	return app
}

func (h *harness) deployment(id string) (d model.Deployment) {
	h.view(func(tx store.Tx) (err error) { d, err = tx.GetDeployment(h.ws, id); return err })
	return d
}

func (h *harness) rows(appID string) (rows []model.Topology) {
	h.view(func(tx store.Tx) (err error) { rows, err = tx.ListTopology([]string{appID}); return err })
	return rows
}

// decisions are the app's history, oldest first.
func (h *harness) decisions(appID string) (what []string) {
	h.view(func(tx store.Tx) error {
		rows, err := tx.HistorySince(appID, "", 1000)
		for _, r := range rows {
			what = append(what, r.What)
		}
		return err
	})
	return what
}

func (h *harness) await(what string, within time.Duration, condition func() bool) {
	h.t.Helper()
	for end := time.Now().Add(within); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("%s: not within %s", what, within)
		}
	}
}

func (h *harness) awaitStatus(appID string, want windlassv1.AppStatus) {
	h.t.Helper()
	h.await(fmt.Sprintf("app is %v", want), 20*time.Minute, func() bool { return h.app(appID).Status == want })
}

// agent is a region: it reads desired state, applies its behaviour, and reports the result, one report at a time.
type agent struct {
	harness  *harness
	region   string
	behave   func(model.DesiredItem, *model.Observed)
	mu       sync.Mutex
	sequence int64
	busy     bool
	again    bool
	away     bool
}

func wellBehaved(item model.DesiredItem, o *model.Observed) {
	if !item.Delete {
		o.Ready, o.ReadyReplicas = item.Topology.Replicas, item.Topology.Replicas
	}
}

func crashing(deploymentID *string) func(model.DesiredItem, *model.Observed) {
	return func(item model.DesiredItem, o *model.Observed) {
		wellBehaved(item, o)
		if item.Key == *deploymentID && !item.Delete {
			o.Ready, o.ReadyReplicas, o.Fail, o.Doomed, o.Restarts = 0, 0, 1, 1, 3
			o.Reason, o.ReasonMessage = "CrashLoop", "exit code 1"
		}
	}
}

// nudge makes the agent read again. It never blocks the committer.
func (a *agent) nudge() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.again = true; !a.busy && !a.away {
		a.busy = true
		a.harness.working.Go(a.work)
	}
}

func (a *agent) work() {
	for {
		a.mu.Lock()
		if !a.again || a.away {
			a.busy = false
			a.mu.Unlock()
			return
		}
		a.again = false
		a.sequence++
		guard := model.NewGuard(1, a.sequence)
		a.mu.Unlock()
		time.Sleep(50 * time.Millisecond) // the time that a region takes to act
		a.harness.update(func(tx store.Tx) error { return a.report(tx, guard) })
	}
}

func (a *agent) report(tx store.Tx, guard model.Guard) error {
	region, err := tx.GetRegion(a.region)
	if err != nil {
		return err
	}
	var items, routes []model.DesiredItem
	err = tx.EachDesired(a.region, 1000, func(page []model.DesiredItem) error {
		for _, it := range page {
			if it.Kind == model.KindDeployment {
				items = append(items, it)
			} else {
				routes = append(routes, it)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	now := time.Now().UnixMilli()
	apps := map[string]bool{}
	for _, item := range items {
		o := model.Observed{
			WorkspaceID: a.harness.ws, AppID: item.Deployment.AppID, DeploymentID: item.Key, RegionID: a.region, Guard: guard,
			AppliedEpoch: region.SessionEpoch, AppliedGeneration: item.Generation, CountsGeneration: item.Generation,
			Phase: int32(agentv1.AppliedState_PHASE_APPLIED), Deleted: item.Delete, UpdatedAt: now,
		}
		a.behave(item, &o)
		old, err := tx.GetObserved(map[string][]string{a.region: {item.Key}})
		if err != nil {
			return err
		}
		if len(old) == 0 || rollup.Edges(old[0], o) {
			apps[item.Deployment.AppID] = true
		}
		if err := tx.PutObserved([]model.Observed{o}); err != nil {
			return err
		}
	}
	for _, item := range routes {
		apps[item.Key] = true
		if err := tx.PutRouteObserved([]model.RouteObserved{{
			AppID: item.Key, RegionID: a.region, Guard: guard, Epoch: region.SessionEpoch, Generation: item.Generation,
			Phase: int32(agentv1.AppliedState_PHASE_APPLIED), UpdatedAt: now,
		}}); err != nil {
			return err
		}
	}
	if err := tx.NoteReports([]model.Region{{
		ID: a.region, SessionID: region.SessionID, SessionEpoch: region.SessionEpoch, SessionFence: region.SessionFence, LastReportAt: now,
	}}, time.Hour.Milliseconds()); err != nil {
		return err
	}
	ids := make([]string, 0, len(apps))
	for id := range apps {
		ids = append(ids, id)
	}
	return tx.Wake(ids, now, now)
}

func (a *agent) setAway(away bool) {
	a.mu.Lock()
	a.away = away
	a.mu.Unlock()
	if !away {
		a.nudge()
	}
}
