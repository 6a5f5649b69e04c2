package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	overQuota = windlassv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED
	tooFast   = windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED
)

func limited(l model.Limits) func(*api.Config) { return func(c *api.Config) { c.Limits = l } }

// gpus gives the spec n GPUs for each instance.
func gpus(n int32) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) {
		s.Resources = &windlassv1.Resources{Gpu: &windlassv1.Gpu{Count: n}}
	}
}

func (h *harness) tryDeploy(app, key string, edit ...func(*windlassv1.DeploymentSpec)) (*windlassv1.DeployResponse, error) {
	return h.apps(h.deployer).Deploy(h.t.Context(), &windlassv1.DeployRequest{Mutation: keyed(key), App: app, Spec: echo(edit...)})
}

func (h *harness) quota() *windlassv1.Quota {
	h.t.Helper()
	res, err := h.workspaces(h.viewer).GetQuota(h.t.Context(), &windlassv1.GetQuotaRequest{})
	require.NoError(h.t, err)
	return res.GetQuota()
}

// usage returns the workspace's usage, without the rates of starts.
func (h *harness) usage() model.Usage {
	h.t.Helper()
	u := h.quota().GetUsage()
	return model.Usage{Apps: u.GetApps(), Deployments: u.GetDeployments(), Instances: u.GetInstances(), GPUs: u.GetGpus(), Rollouts: u.GetRollouts()}
}

func (h *harness) setQuota(key string, own *windlassv1.Limits) (*windlassv1.Quota, error) {
	h.t.Helper()
	res, err := h.workspaces(key).SetQuota(h.t.Context(), &windlassv1.SetQuotaRequest{
		Workspace: "acme", Own: own, ResourceVersion: h.quota().GetResourceVersion(),
	})
	return res.GetQuota(), err
}

// limitOf asserts the reason and the limit of a refusal, and returns its detail.
func limitOf(t *testing.T, err error, reason windlassv1.ErrorReason, name string) *windlassv1.LimitDetail {
	t.Helper()
	refused(t, err, connect.CodeResourceExhausted, reason, "")
	limit := detailOf(err).GetLimit()
	require.Equal(t, name, limit.GetName(), "%v", err)
	require.Contains(t, detailOf(err).GetFix(), "windlass workspace quota")
	return limit
}

func TestQuota_IsFilledExactlyByConcurrentDeploys(t *testing.T) {
	for name, c := range map[string]struct {
		limits model.Limits
		passes int
	}{
		"apps":        {model.Limits{Apps: 5}, 5},
		"deployments": {model.Limits{Deployments: 6}, 6},
		"instances":   {model.Limits{Instances: 4*7 + 3}, 7},
		"gpus":        {model.Limits{GPUs: 8 * 3}, 3},
		"rollouts":    {model.Limits{Rollouts: 4}, 4},
	} {
		for database, open := range map[string]func(*testing.T) store.Store{"memory": newStore, "MariaDB": newDatabase} {
			t.Run(name+" in "+database, func(t *testing.T) {
				deploysAtOnce(t, setupOn(t, open(t), limited(c.limits)), name, c.passes)
			})
		}
	}
}

// deploysAtOnce makes more concurrent deploys than a limit allows. name is the limit's name, and passes is the number
// of deploys that must succeed.
func deploysAtOnce(t *testing.T, w *harness, name string, passes int) {
	t.Helper()
	errs := make([]error, 24)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = w.tryDeploy(fmt.Sprintf("app-%d", i), "", gpus(2)) })
	}
	wg.Wait()
	passed := 0
	for _, err := range errs {
		if err == nil {
			passed++
			continue
		}
		limitOf(t, err, overQuota, name)
	}
	require.Equal(t, passes, passed)
	n := int64(passed)
	require.Equal(t, model.Usage{Apps: n, Deployments: n, Instances: 4 * n, GPUs: 8 * n, Rollouts: n}, w.usage())
	apps, err := w.apps(w.viewer).ListApps(t.Context(), &windlassv1.ListAppsRequest{})
	require.NoError(t, err)
	require.Len(t, apps.GetApps(), passes, "a refused deploy left an app")
}

func TestQuota_CountsReplicasThatRequestsMayStart(t *testing.T) {
	t.Parallel()
	w := setup(t, limited(model.Limits{Instances: 3}))
	wakes := func(s *windlassv1.DeploymentSpec) {
		s.Routing = &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{}}
	}
	regions := int64(len(echo().GetRegions()))
	w.deploy("chat", replicas(0), wakes)
	w.settle("chat")
	require.Equal(t, regions, w.usage().Instances, "one replica in each region, which a request can start")
	_, err := w.tryDeploy("more", "", replicas(1))
	limitOf(t, err, overQuota, "instances")
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Region: "us-east-1", Replicas: 1})
	require.NoError(t, err, "the replica counts already")
	require.Equal(t, regions, w.usage().Instances)
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Region: "us-east-1", Replicas: 3})
	limitOf(t, err, overQuota, "instances")

	w.deploy("chat", replicas(0))
	w.settle("chat")
	require.Zero(t, w.usage().Instances, "no request starts the app")
}

func TestQuota_RefusedDeployLeavesNothing(t *testing.T) {
	w := setup(t, limited(model.Limits{Instances: 6}))
	w.deploy("chat", replicas(2))
	w.settle("chat")
	before := w.dump()
	for range 2 {
		_, err := w.tryDeploy("more", "k")
		limit := limitOf(t, err, overQuota, "instances")
		require.EqualValues(t, 6, limit.GetMax())
		require.EqualValues(t, 4, limit.GetUsed())
		require.EqualValues(t, 4, limit.GetAsked())
		require.Contains(t, err.Error(), "may have 6 instances: it has 4, and this call asks for 4 more")
		require.Contains(t, detailOf(err).GetFix(), "windlass workspace quota "+w.workspace+" --instances 8")
	}
	_, err := w.tryDeploy("chat", "", replicas(4))
	limitOf(t, err, overQuota, "instances")
	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Region: "us-east-1", Replicas: 5})
	limitOf(t, err, overQuota, "instances")
	require.Equal(t, before, w.dump())

	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Region: "us-east-1", Replicas: 4})
	require.NoError(t, err, "exactly at the limit")
	require.EqualValues(t, 6, w.usage().Instances)
}

func TestQuota_FullWorkspaceUpdatesRollsBackAndScalesDown(t *testing.T) {
	w := setup(t, limited(model.Limits{Apps: 1, Deployments: 1, Instances: 4, GPUs: 4, Rollouts: 1}))
	full := model.Usage{Apps: 1, Deployments: 1, Instances: 4, GPUs: 4}
	w.deploy("chat", gpus(1))
	w.settle("chat")
	require.Equal(t, full, w.usage())
	w.deploy("chat", gpus(1), args("b"))
	w.deploy("chat", gpus(1), args("c")) // replaces the rollout in flight
	w.settle("chat")
	require.Equal(t, full, w.usage())
	_, err := w.apps(w.deployer).Rollback(t.Context(), &windlassv1.RollbackRequest{App: "chat", Version: 1})
	require.NoError(t, err)
	w.settle("chat")
	_, err = w.apps(w.deployer).SetEnvironment(t.Context(), &windlassv1.SetEnvironmentRequest{App: "chat", Set: map[string]string{"A": "b"}})
	require.NoError(t, err)
	w.settle("chat")
	require.Equal(t, full, w.usage())
	_, err = w.tryDeploy("chat", "", gpus(2), args("d"))
	require.EqualValues(t, 4, limitOf(t, err, overQuota, "gpus").GetAsked())

	_, err = w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 1})
	require.NoError(t, err)
	require.EqualValues(t, 2, w.usage().Instances)
	_, err = w.apps(w.owner).DeleteApp(t.Context(), &windlassv1.DeleteAppRequest{App: "chat"})
	require.NoError(t, err)
	w.settle("chat")
	require.Zero(t, w.usage())
	w.deploy("other", gpus(1))
}

func TestQuota_EndedWorkloadsDoNotCount(t *testing.T) {
	w := setup(t, limited(model.Limits{Instances: 8, Rollouts: 2}))
	w.deploy("a")
	w.settle("a")
	w.deploy("a", args("larger"), replicas(4)) // counts with 8
	_, err := w.tryDeploy("b", "")
	limitOf(t, err, overQuota, "instances")
	_, err = w.apps(w.deployer).Cancel(t.Context(), &windlassv1.CancelRequest{App: "a"})
	require.NoError(t, err)
	w.settle("a")
	require.Equal(t, model.Usage{Apps: 1, Deployments: 1, Instances: 4}, w.usage())
	w.deploy("b")
	require.EqualValues(t, 8, w.usage().Instances)
	_, err = w.tryDeploy("c", "", replicas(1))
	limitOf(t, err, overQuota, "instances")
}

// An app has no claim if an earlier release, which wrote no claims, changed it last.
func TestQuota_CountsAppsWithoutAClaim(t *testing.T) {
	w := setup(t, limited(model.Limits{Instances: 5*4 + 3}))
	for i := range 5 {
		w.deploy(fmt.Sprintf("app-%d", i))
	}
	w.update(func(tx store.Tx) error {
		apps, err := tx.ListApps(w.workspace, "", model.Page{})
		if err != nil {
			return err
		}
		var none []model.Claim
		for _, a := range apps {
			none = append(none, model.Claim{AppID: a.ID, WorkspaceID: a.WorkspaceID, RolloutID: "rol_of_old"})
		}
		return tx.PutClaims(none)
	})
	require.EqualValues(t, 20, w.usage().Instances)
	_, err := w.tryDeploy("more", "")
	require.EqualValues(t, 20, limitOf(t, err, overQuota, "instances").GetUsed())
	_, err = w.tryDeploy("less", "", replicas(1))
	require.NoError(t, err)
	require.EqualValues(t, 22, w.usage().Instances)
}

func TestIdempotencyKey_IsNeitherRefusedNorChargedTwice(t *testing.T) {
	w := setup(t, limited(model.Limits{Apps: 1, StartsPerMinute: 1, StartsBurst: 2}))
	first, err := w.tryDeploy("chat", "k1")
	require.NoError(t, err)
	for range 5 {
		again, err := w.tryDeploy("chat", "k1")
		require.NoError(t, err)
		require.Equal(t, first.String(), again.String())
	}
	require.EqualValues(t, 1, w.quota().GetUsage().GetStartsLeft())
	_, err = w.tryDeploy("chat", "k2", args("b"))
	require.NoError(t, err)
	_, err = w.tryDeploy("chat", "k3", args("c"))
	limitOf(t, err, tooFast, "starts_per_minute")
	for _, key := range []string{"k1", "k2"} {
		_, err = w.tryDeploy("chat", key, map[string]func(*windlassv1.DeploymentSpec){"k1": func(*windlassv1.DeploymentSpec) {}, "k2": args("b")}[key])
		require.NoError(t, err, "a repeated call passes, although a new call would be refused")
	}
	_, err = w.tryDeploy("chat", "k3", args("c"))
	limitOf(t, err, tooFast, "starts_per_minute")
}

func TestIdempotencyKey_ConcurrentCallsAreOneStart(t *testing.T) {
	w := setup(t, limited(model.Limits{Apps: 1, StartsPerMinute: 1, StartsBurst: 1}))
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { _, errs[i] = w.tryDeploy("chat", "k") })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, model.Usage{Apps: 1, Deployments: 1, Instances: 4, Rollouts: 1}, w.usage())
}

func TestRate_RefusalSaysHowLongToWait(t *testing.T) {
	w := setup(t, limited(model.Limits{StartsPerMinute: 1, StartsBurst: 1}))
	w.deploy("chat")
	before := w.dump()
	for _, call := range []func() error{
		func() error { _, err := w.tryDeploy("chat", ""); return err },
		func() error {
			_, err := w.apps(w.deployer).Scale(t.Context(), &windlassv1.ScaleRequest{App: "chat", Replicas: 1})
			return err
		},
		func() error {
			_, err := w.environments(w.deployer).SetSecret(t.Context(), &windlassv1.SetSecretRequest{Environment: "production", Name: "s", Value: "v"})
			return err
		},
	} {
		err := call()
		limit := limitOf(t, err, tooFast, "starts_per_minute")
		require.EqualValues(t, 1, limit.GetMax())
		wait := time.Duration(limit.GetRetryAfterMs()) * time.Millisecond
		require.Positive(t, wait)
		require.LessOrEqual(t, wait, time.Minute)
		var coded *connect.Error
		require.ErrorAs(t, err, &coded)
		require.NotEmpty(t, coded.Meta().Get("Retry-After"))
		found := false
		for _, d := range coded.Details() {
			v, err := d.Value()
			require.NoError(t, err)
			if info, ok := v.(*errdetails.RetryInfo); ok {
				found = true
				require.Equal(t, wait, info.GetRetryDelay().AsDuration())
			}
		}
		require.True(t, found, "google.rpc.RetryInfo")
	}
	require.Equal(t, before, w.dump())
	// Calls that reduce work are never refused.
	_, err := w.apps(w.deployer).Cancel(t.Context(), &windlassv1.CancelRequest{App: "chat"})
	require.NoError(t, err)
	_, err = w.apps(w.owner).DeleteApp(t.Context(), &windlassv1.DeleteAppRequest{App: "chat"})
	require.NoError(t, err)
}

func TestRate_AppliesPerWorkspace(t *testing.T) {
	w := setup(t, limited(model.Limits{StartsPerMinute: 1, StartsBurst: 3}))
	_, err := w.regionService(w.rival).CreateRegion(t.Context(), &windlassv1.CreateRegionRequest{Name: "us-east-1"})
	require.NoError(t, err)
	refusedCalls := 0
	for i := range 10 {
		if _, err := w.tryDeploy("chat", "", args(fmt.Sprint(i))); err != nil {
			limitOf(t, err, tooFast, "starts_per_minute")
			refusedCalls++
		}
	}
	require.Equal(t, 7, refusedCalls)
	spec := echo()
	spec.Regions = []string{"us-east-1"}
	_, err = w.apps(w.rival).Deploy(t.Context(), &windlassv1.DeployRequest{App: "chat", Spec: spec})
	require.NoError(t, err)
}

// Two processes of the control plane share the bucket through the database.
func TestRate_HoldsAcrossProcesses(t *testing.T) {
	var cfg api.Config
	w := setup(t, limited(model.Limits{StartsPerMinute: 1, StartsBurst: 4}), func(c *api.Config) { cfg = *c })
	another := w.another(cfg)
	passed := 0
	for i := range 10 {
		process := []*harness{w, another}[i%2]
		req := &windlassv1.DeployRequest{App: "chat", Spec: echo(args(fmt.Sprint(i)))}
		if _, err := process.apps(w.deployer).Deploy(t.Context(), req); err == nil {
			passed++
		}
	}
	require.Equal(t, 4, passed)
}

// another starts another process of the control plane on the same store.
func (h *harness) another(cfg api.Config) *harness {
	h.t.Helper()
	cfg.Registerer = prometheus.NewRegistry()
	second, err := api.New(cfg)
	require.NoError(h.t, err)
	mux := http.NewServeMux()
	for _, handler := range second.Handlers(rpc.HandlerOptions(rpc.Config{Log: cfg.Log, Admit: second.Admit})...) {
		mux.Handle(handler.Path, handler)
	}
	server := httptest.NewServer(mux)
	h.t.Cleanup(server.Close)
	h.t.Cleanup(server.CloseClientConnections)
	copied := *h
	copied.api, copied.url = second, server.URL
	return &copied
}

func TestRestart_TakesOneTokenBeforeItCallsTheAgent(t *testing.T) {
	w := setup(t, limited(model.Limits{StartsPerMinute: 1, StartsBurst: 2}))
	w.agents.answer = func(string, *agentv1.Request) ([]byte, error) { return nil, nil }
	w.deploy("chat")
	app := w.settle("chat")
	w.update(func(tx store.Tx) error {
		return tx.PutInstances([]model.Instance{{
			ID: "ins_1", WorkspaceID: w.workspace, AppID: app.GetId(), DeploymentID: app.GetLiveDeploymentId(),
			RegionID: w.regions["us-east-1"], Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY,
		}})
	})
	restart := func(key string) error {
		_, err := w.deployments(w.deployer).RestartInstance(t.Context(), &windlassv1.RestartInstanceRequest{Mutation: keyed(key), Instance: "ins_1"})
		return err
	}
	for range 3 {
		require.NoError(t, restart("k1"))
	}
	limitOf(t, restart("k2"), tooFast, "starts_per_minute")
	require.EqualValues(t, 1, w.agents.asked.Load())
}

func TestQuota_OwnersMayOnlyLowerLimits(t *testing.T) {
	w := setup(t, limited(model.Limits{Apps: 10, GPUs: 8, StartsPerMinute: 60, StartsBurst: 5}))
	q := w.quota()
	require.EqualValues(t, 10, q.GetLimits().GetApps())
	require.EqualValues(t, 0, q.GetLimits().GetInstances())
	require.Nil(t, q.GetOwn().Apps)
	require.EqualValues(t, 5, q.GetUsage().GetStartsLeft())

	// A dry run warns owners that only an operator can raise the limit again.
	proposed := &windlassv1.Limits{Apps: new(int64(1)), Instances: new(int64(100)), Gpus: new(int64(9))}
	for _, key := range []string{w.owner, w.operator} {
		quota, err := w.workspaces(key).GetQuota(t.Context(), &windlassv1.GetQuotaRequest{Workspace: "acme", Proposed: proposed})
		require.NoError(t, err)
		require.EqualValues(t, 10, quota.GetQuota().GetLimits().GetApps(), "nothing changes")
		var want []string
		if key == w.owner {
			want = []string{
				"limit apps goes from 10 to 1: only an operator of the platform can raise it again",
				"limit instances goes from unlimited to 100: only an operator of the platform can raise it again",
			}
		}
		require.Equal(t, want, quota.GetWarnings())
	}

	q, err := w.setQuota(w.owner, &windlassv1.Limits{Apps: new(int64(1)), Instances: new(int64(100))})
	require.NoError(t, err)
	require.EqualValues(t, 1, q.GetLimits().GetApps())
	require.EqualValues(t, 8, q.GetLimits().GetGpus())
	w.deploy("chat")
	_, err = w.tryDeploy("more", "")
	limitOf(t, err, overQuota, "apps")
	for name, own := range map[string]*windlassv1.Limits{
		"apps":              {Apps: new(int64(2)), Instances: new(int64(100))},
		"instances":         {Apps: new(int64(1))},
		"gpus":              {Apps: new(int64(1)), Instances: new(int64(100)), Gpus: new(int64(0))},
		"starts_per_minute": {Apps: new(int64(1)), Instances: new(int64(100)), StartsPerMinute: new(int64(61))},
		"starts_burst":      {Apps: new(int64(1)), Instances: new(int64(100)), StartsBurst: new(int64(6))},
	} {
		_, err = w.setQuota(w.owner, own)
		refused(t, err, connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "")
		require.ErrorContains(t, err, "limit "+name+" ")
	}
	_, err = w.setQuota(w.deployer, &windlassv1.Limits{Apps: new(int64(0))})
	refused(t, err, connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "")
	_, err = w.setQuota(w.rival, &windlassv1.Limits{})
	refused(t, err, connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "workspace")

	q, err = w.setQuota(w.operator, &windlassv1.Limits{Apps: new(int64(0)), Gpus: new(int64(1000))})
	require.NoError(t, err)
	require.EqualValues(t, 0, q.GetLimits().GetApps())
	require.EqualValues(t, 1000, q.GetLimits().GetGpus())
	require.EqualValues(t, 2, q.GetResourceVersion())
	_, err = w.workspaces(w.operator).SetQuota(t.Context(), &windlassv1.SetQuotaRequest{Workspace: "acme", Own: &windlassv1.Limits{}, ResourceVersion: 1})
	refused(t, err, connect.CodeAborted, windlassv1.ErrorReason_ERROR_REASON_CONFLICT, "resourceVersion")
	q, err = w.setQuota(w.operator, &windlassv1.Limits{})
	require.NoError(t, err)
	require.EqualValues(t, 10, q.GetLimits().GetApps(), "the default of the platform again")
}

func TestQuota_LowerLimitStopsNothingAndHigherLimitCountsAtOnce(t *testing.T) {
	w := setup(t)
	w.deploy("chat", replicas(3))
	w.settle("chat")
	_, err := w.setQuota(w.operator, &windlassv1.Limits{Instances: new(int64(2)), StartsPerMinute: new(int64(60)), StartsBurst: new(int64(3))})
	require.NoError(t, err)
	require.EqualValues(t, 6, w.usage().Instances)
	w.deploy("chat", replicas(3), args("b")) // not more than the workspace has
	w.settle("chat")
	_, err = w.tryDeploy("chat", "", replicas(4))
	limitOf(t, err, overQuota, "instances")
	_, err = w.setQuota(w.operator, &windlassv1.Limits{})
	require.NoError(t, err)
	// The process caches the old rate for up to a second.
	for ; err != nil || w.usage().Instances != 8; time.Sleep(10 * time.Millisecond) {
		_, err = w.tryDeploy("chat", "", replicas(4))
	}
}

func TestRefusedCalls_NeedNoWriteTransactions(t *testing.T) {
	var updates atomic.Int32
	w := setup(t, limited(model.Limits{StartsPerMinute: 1, StartsBurst: 1}), func(c *api.Config) { c.Store = updating{c.Store, &updates} })
	w.deploy("chat")
	_, err := w.tryDeploy("chat", "", args("b"))
	limitOf(t, err, tooFast, "starts_per_minute")
	updates.Store(0)
	begin := time.Now()
	const calls = 300
	for range calls {
		_, err := w.tryDeploy("chat", "", args("b"))
		limitOf(t, err, tooFast, "starts_per_minute")
	}
	require.LessOrEqual(t, int(updates.Load()), int(time.Since(begin)/time.Second)+1)
}

// updating counts read-write transactions.
type updating struct {
	api.Store
	n *atomic.Int32
}

func (u updating) Update(ctx context.Context, fn func(api.Tx) error) error {
	u.n.Add(1)
	return u.Store.Update(ctx, fn)
}

func (u updating) UpdateBatched(ctx context.Context, key, app string, fn func(api.Tx) (func() error, error)) error {
	u.n.Add(1)
	return u.Store.UpdateBatched(ctx, key, app, fn)
}

// The sum covers all apps of a workspace. A call far below the limit must not wait for it.
func TestQuota_IsSummedOnceFarBelowTheLimit(t *testing.T) {
	for name, open := range map[string]func(*testing.T) store.Store{"memory": newStore, "MariaDB": newDatabase} {
		t.Run(name, func(t *testing.T) {
			var counted atomic.Int32
			w := setupOn(t, open(t), limited(model.Limits{Apps: 12, Instances: 48}), func(c *api.Config) { c.Store = addingUp{c.Store, &counted} })
			begin := time.Now()
			for i := range 12 {
				w.deploy(fmt.Sprintf("app-%d", i))
			}
			atMost := func(n int) { require.LessOrEqual(t, int(counted.Load()), n+int(time.Since(begin)/(10*time.Second))) }
			atMost(1)
			require.Equal(t, model.Usage{Apps: 12, Deployments: 12, Instances: 48, Rollouts: 12}, w.usage())

			// At the limit, the sum is exact, and deleted apps do not count.
			_, err := w.tryDeploy("more", "")
			limitOf(t, err, overQuota, "apps")
			atMost(2)
			_, err = w.apps(w.owner).DeleteApp(t.Context(), &windlassv1.DeleteAppRequest{App: "app-0"})
			require.NoError(t, err)
			w.settle("app-0")
			w.deploy("more")
			_, err = w.tryDeploy("yet-more", "")
			limitOf(t, err, overQuota, "apps")

			// A removed limit is not enforced. When it is set again, the sum is exact.
			_, err = w.setQuota(w.operator, &windlassv1.Limits{Apps: new(int64(0)), Instances: new(int64(0))})
			require.NoError(t, err)
			before := counted.Load()
			w.deploy("yet-more")
			require.Equal(t, before, counted.Load())
			_, err = w.setQuota(w.operator, &windlassv1.Limits{Apps: new(int64(13))})
			require.NoError(t, err)
			_, err = w.tryDeploy("too-many", "")
			limitOf(t, err, overQuota, "apps")
		})
	}
}

// addingUp counts the calls of UsageOf in mutations.
type addingUp struct {
	api.Store
	n *atomic.Int32
}

func (c addingUp) Update(ctx context.Context, fn func(api.Tx) error) error {
	return c.Store.Update(ctx, func(tx api.Tx) error { return fn(addingUpTx{tx, c.n}) })
}

func (c addingUp) UpdateBatched(ctx context.Context, key, app string, fn func(api.Tx) (func() error, error)) error {
	return c.Store.UpdateBatched(ctx, key, app, func(tx api.Tx) (func() error, error) { return fn(addingUpTx{tx, c.n}) })
}

type addingUpTx struct {
	api.Tx
	n *atomic.Int32
}

func (c addingUpTx) UsageOf(workspaceID, exceptAppID string) (model.Usage, int, error) {
	c.n.Add(1)
	return c.Tx.UsageOf(workspaceID, exceptAppID)
}

func TestRate_RefusalOverHTTPIs429(t *testing.T) {
	w := setup(t, limited(model.Limits{Apps: 1}))
	w.deploy("chat")
	status, body := w.post(w.deployer, "/windlass.v1.AppService/CreateApp", map[string]any{"name": "more"})
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Equal(t, "resource_exhausted", body["code"])
	detail := body["details"].([]any)[0].(map[string]any)["debug"].(map[string]any)
	require.Equal(t, "ERROR_REASON_QUOTA_EXCEEDED", detail["reason"])
	require.Equal(t, map[string]any{"name": "apps", "max": "1", "used": "1", "asked": "1"}, detail["limit"])
}
