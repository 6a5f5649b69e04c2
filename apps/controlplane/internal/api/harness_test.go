package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollout"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/seal"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

// harness is an API over real HTTP and a store, with two workspaces.
type harness struct {
	t       *testing.T
	store   store.Store
	box     *seal.Box
	api     *api.API
	url     string
	agents  *fakeAgents
	stepper *rollout.Stepper

	operator, owner, deployer, viewer string // keys, the last three of workspace acme
	rival                             string // key of an owner of workspace rival
	workspace                         string
	regions                           map[string]string // region ids of acme, by name
	away                              map[string]bool   // ids of regions that are out of reach
	gateways                          map[string]string // URLs of the gateways of regions, by their ids
	records                           *records
	runtime                           string // that agents report
}

// lose makes a region of acme unreachable, until find is called.
func (h *harness) lose(region string) {
	h.t.Helper()
	h.away = map[string]bool{h.regions[region]: true}
	id := h.regions[region]
	h.update(func(tx store.Tx) error {
		// The lease has already ended.
		if _, _, err := tx.StartSession(id, "session-"+id, -60_000, model.Region{}); err != nil {
			return err
		}
		_, err := tx.ExpireLeases(time.Now().UnixMilli(), 100)
		return err
	})
}

func (h *harness) find() { h.away = nil }

// fakeAgents answers for regions that are connected.
type fakeAgents struct {
	asked  atomic.Int32
	answer func(region string, req *agentv1.Request) ([]byte, error)
}

func (f *fakeAgents) Ask(_ context.Context, region string, req *agentv1.Request) ([]byte, error) {
	f.asked.Add(1)
	return f.answer(region, req)
}

func setup(t *testing.T, tweak ...func(*api.Config)) *harness {
	t.Helper()
	return setupOn(t, newStore(t), tweak...)
}

func setupOn(t *testing.T, on store.Store, tweak ...func(*api.Config)) *harness {
	t.Helper()
	w := &harness{t: t, store: on, regions: map[string]string{}, records: &records{}}
	keys, err := seal.Generate()
	require.NoError(t, err)
	w.box, err = seal.New(keys)
	require.NoError(t, err)
	w.agents = &fakeAgents{answer: func(string, *agentv1.Request) ([]byte, error) { return nil, model.ErrAgentUnreachable }}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	cfg := api.Config{
		Store: store.Bind[api.Tx](w.store), Box: w.box, Agents: w.agents,
		Log: log, Registerer: prometheus.NewRegistry(), Version: "test", Domain: "apps.test", LookupTXT: w.records.lookup,
	}
	for _, f := range tweak {
		f(&cfg)
	}
	w.api, err = api.New(cfg)
	require.NoError(t, err)
	w.store.OnCommit(func(c store.Commit) { w.api.Notify(c.Apps) })
	w.stepper, err = rollout.NewStepper(rollout.Config{
		Store: store.Bind[rollout.Tx](w.store), Images: noImages{},
		Log: log, Registerer: prometheus.NewRegistry(), Tracer: noop.NewTracerProvider().Tracer(""), Domain: "apps.test",
	})
	require.NoError(t, err)

	mux := http.NewServeMux()
	for _, h := range w.api.Handlers(rpc.HandlerOptions(rpc.Config{Log: log, Admit: w.api.Admit, Interceptors: []connect.Interceptor{w.api.Interceptor()}})...) {
		mux.Handle(h.Path, h)
	}
	scalers := w.api.ExternalScaler(rpc.HandlerOptions(rpc.Config{Log: log, Admit: w.api.AdmitScaler, HoldBack: true})...)
	mux.Handle(scalers.Path, scalers.Handler)
	mux.Handle("POST /ui/", w.api.Sessions())
	mux.Handle("GET "+api.SSOPath, w.api.SSO())
	server := httptest.NewUnstartedServer(nil)
	server.Config = rpc.NewServer(rpc.ServerConfig{Handler: w.api.Browser(mux), Log: log})
	server.Start()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	w.url = server.URL

	w.seed()
	return w
}

type noImages struct{}

func (noImages) Resolve(context.Context, string, []string) (string, error) {
	return "", errors.New("no registry")
}

// seed inserts an operator's key, and makes everything else through the API.
func (h *harness) seed() {
	h.operator = "wl_" + "operatoroperatoroperatoroperatoroperator123"
	h.update(func(tx store.Tx) error {
		return tx.InsertAPIKey(model.APIKey{
			ID: ident.New("key"), Name: "operator", Role: windlassv1.Role_ROLE_OPERATOR,
			Prefix: "wl_opera", Hash: model.HashToken(h.operator), CreatedAt: 1,
		})
	})
	ctx := h.t.Context()
	acme, err := h.workspaces(h.operator).CreateWorkspace(ctx, &windlassv1.CreateWorkspaceRequest{Name: "acme"})
	require.NoError(h.t, err)
	h.owner, h.workspace = acme.GetApiKey(), acme.GetWorkspace().GetId()
	rival, err := h.workspaces(h.operator).CreateWorkspace(ctx, &windlassv1.CreateWorkspaceRequest{Name: "rival"})
	require.NoError(h.t, err)
	h.rival = rival.GetApiKey()
	for role, key := range map[windlassv1.Role]*string{
		windlassv1.Role_ROLE_DEPLOYER: &h.deployer, windlassv1.Role_ROLE_VIEWER: &h.viewer,
	} {
		res, err := h.access(h.owner).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{
			Name: fmt.Sprintf("role-%d", role), Role: role,
		})
		require.NoError(h.t, err)
		*key = res.GetValue()
	}
	for _, name := range []string{"us-east-1", "eu-west-1"} {
		res, err := h.regionService(h.owner).CreateRegion(ctx, &windlassv1.CreateRegionRequest{Name: name})
		require.NoError(h.t, err)
		h.regions[name] = res.GetRegion().GetId()
	}
}

func (h *harness) update(fn func(store.Tx) error) {
	h.t.Helper()
	require.NoError(h.t, h.store.Update(h.t.Context(), fn))
}

func (h *harness) options(key string) []connect.ClientOption {
	return rpc.ClientOptions(rpc.ClientConfig{Token: func() string { return key }, UserAgent: "test/1"})
}

func (h *harness) apps(key string) windlassv1connect.AppServiceClient {
	return windlassv1connect.NewAppServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) deployments(key string) windlassv1connect.DeploymentServiceClient {
	return windlassv1connect.NewDeploymentServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) logs(key string) windlassv1connect.LogServiceClient {
	return windlassv1connect.NewLogServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) series(key string) windlassv1connect.SeriesServiceClient {
	return windlassv1connect.NewSeriesServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) rollouts(key string) windlassv1connect.RolloutServiceClient {
	return windlassv1connect.NewRolloutServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) regionService(key string) windlassv1connect.RegionServiceClient {
	return windlassv1connect.NewRegionServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) access(key string) windlassv1connect.AccessServiceClient {
	return windlassv1connect.NewAccessServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) members(key string) windlassv1connect.MemberServiceClient {
	return windlassv1connect.NewMemberServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) workspaces(key string) windlassv1connect.WorkspaceServiceClient {
	return windlassv1connect.NewWorkspaceServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) projects(key string) windlassv1connect.ProjectServiceClient {
	return windlassv1connect.NewProjectServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) environments(key string) windlassv1connect.EnvironmentServiceClient {
	return windlassv1connect.NewEnvironmentServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) notifications(key string) windlassv1connect.NotificationServiceClient {
	return windlassv1connect.NewNotificationServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) protections(key string) windlassv1connect.ProtectionServiceClient {
	return windlassv1connect.NewProtectionServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) freezes(key string) windlassv1connect.FreezeServiceClient {
	return windlassv1connect.NewFreezeServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) routes(key string) windlassv1connect.RouteServiceClient {
	return windlassv1connect.NewRouteServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

func (h *harness) history(key string) windlassv1connect.HistoryServiceClient {
	return windlassv1connect.NewHistoryServiceClient(http.DefaultClient, h.url, h.options(key)...)
}

// echo returns a valid spec.
func echo(edit ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeploymentSpec {
	s := &windlassv1.DeploymentSpec{Command: []string{"modelserver"}, Regions: []string{"us-east-1", "eu-west-1"}}
	for _, f := range edit {
		f(s)
	}
	return s
}

func args(a ...string) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Args = a }
}

func replicas(n int32) func(*windlassv1.DeploymentSpec) {
	return func(s *windlassv1.DeploymentSpec) { s.Replicas = new(n) }
}

func (h *harness) deploy(app string, edit ...func(*windlassv1.DeploymentSpec)) *windlassv1.DeployResponse {
	h.t.Helper()
	res, err := h.apps(h.deployer).Deploy(h.t.Context(), &windlassv1.DeployRequest{App: app, Spec: echo(edit...)})
	require.NoError(h.t, err)
	return res
}

// settle runs steps of the workflow and reports of regions until the app has nothing left to do. Connected regions
// apply each change at once.
func (h *harness) settle(app string) *windlassv1.App {
	h.t.Helper()
	ctx := h.t.Context()
	got, err := h.apps(h.viewer).GetApp(ctx, &windlassv1.GetAppRequest{App: app})
	require.NoError(h.t, err)
	for range 40 {
		err := h.stepper.Step(ctx, got.GetApp().GetId())
		require.NoError(h.t, err)
		h.report(got.GetApp().GetId())
	}
	after, err := h.apps(h.viewer).GetApp(ctx, &windlassv1.GetAppRequest{App: got.GetApp().GetId()})
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil
	}
	require.NoError(h.t, err)
	return after.GetApp()
}

var guards atomic.Int64

// report reports for every region that it runs the desired state.
func (h *harness) report(appID string) {
	h.t.Helper()
	now := time.Now().UnixMilli()
	h.update(func(tx store.Tx) error {
		rows, err := tx.ListTopology([]string{appID})
		if err != nil {
			return err
		}
		routes, err := tx.ListRoutes([]string{appID})
		if err != nil {
			return err
		}
		var observed []model.Observed
		for _, t := range rows {
			if h.away[t.RegionID] {
				continue
			}
			r, _, err := tx.StartSession(t.RegionID, "session-"+t.RegionID, 60_000, model.Region{
				AgentFeatures: []string{agentv1.Feature_FEATURE_IN_PLACE.String()}, GatewayURL: h.gateways[t.RegionID], AgentRuntime: h.runtime,
			})
			if err != nil {
				return err
			}
			o := model.Observed{
				WorkspaceID: t.WorkspaceID, AppID: t.AppID, DeploymentID: t.DeploymentID, RegionID: t.RegionID,
				Guard: model.NewGuard(1, guards.Add(1)), AppliedEpoch: r.SessionEpoch, AppliedGeneration: t.Generation,
				Phase: int32(agentv1.AppliedState_PHASE_APPLIED), CountsGeneration: t.Generation, UpdatedAt: now,
			}
			if t.Assigned() {
				o.Ready, o.ReadyReplicas = t.Replicas, t.Replicas
			} else {
				o.Deleted = true
			}
			observed = append(observed, o)
		}
		var acknowledged []model.RouteObserved
		for _, r := range routes {
			if h.away[r.RegionID] {
				continue
			}
			region, err := tx.GetRegion(r.RegionID)
			if err != nil {
				return err
			}
			acknowledged = append(acknowledged, model.RouteObserved{
				AppID: appID, RegionID: r.RegionID, Guard: model.NewGuard(1, guards.Add(1)), Epoch: region.SessionEpoch,
				Generation: r.Generation, Phase: int32(agentv1.AppliedState_PHASE_APPLIED), UpdatedAt: now,
			})
		}
		if err := tx.PutObserved(observed); err != nil {
			return err
		}
		return tx.PutRouteObserved(acknowledged)
	})
}

// refused asserts the code, reason and field of an error.
func refused(t *testing.T, err error, code connect.Code, reason windlassv1.ErrorReason, field string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, connect.CodeOf(err), "%v", err)
	detail := rpc.DetailOf(err)
	require.NotNil(t, detail, "%v", err)
	require.Equal(t, reason, detail.GetReason(), "%v", err)
	require.Equal(t, field, detail.GetField(), "%v", err)
	namesFieldsAsFilesDo(t, err.Error()+"\n"+detail.GetFix())
}

// post calls a procedure with JSON, like curl.
func (h *harness) post(key, procedure string, body any) (int, map[string]any) {
	h.t.Helper()
	raw, ok := body.([]byte)
	if !ok {
		var err error
		raw, err = json.Marshal(body)
		require.NoError(h.t, err)
	}
	req, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost, h.url+procedure, bytes.NewReader(raw))
	require.NoError(h.t, err)
	req.Header.Set("Content-Type", "application/json")
	return h.do(key, req)
}

func (h *harness) do(key string, req *http.Request) (int, map[string]any) {
	h.t.Helper()
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(h.t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(h.t, err)
	out := map[string]any{}
	require.NoError(h.t, json.Unmarshal(data, &out), "%s", data)
	return res.StatusCode, out
}

// dump returns all state that a mutation can change, as text.
func (h *harness) dump() string {
	h.t.Helper()
	all := model.Page{Limit: 1000}
	out := map[string]any{}
	err := h.store.Snapshot(h.t.Context(), func(tx store.Tx) (err error) {
		workspaces, err := tx.ListWorkspaces(all)
		out["workspaces"] = workspaces
		if err != nil {
			return err
		}
		for _, ws := range append(workspaces, model.Workspace{}) {
			if err := dumpWorkspace(tx, ws.ID, out); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(h.t, err)
	b, err := json.MarshalIndent(out, "", " ")
	require.NoError(h.t, err)
	return string(b)
}

func dumpWorkspace(tx store.Tx, ws string, out map[string]any) (err error) {
	all := model.Page{Limit: 1000}
	put := func(name string, rows any, failed error) {
		out[ws+" "+name] = rows
		err = errors.Join(err, failed)
	}
	keys, e := tx.ListAPIKeys(ws, all)
	put("keys", keys, e)
	projects, e := tx.ListProjects(ws, all)
	put("projects", projects, e)
	for _, p := range projects {
		environments, e := tx.ListEnvironments(ws, p.ID, all)
		put("environments of "+p.ID, environments, e)
		for _, env := range environments {
			secrets, e := tx.ListSecrets(ws, env.ID, all)
			put("secrets of "+env.ID, secrets, e)
		}
	}
	apps, e := tx.ListApps(ws, "", all)
	put("apps", apps, e)
	deployments, e := tx.ListDeployments(ws, "", all)
	put("deployments", deployments, e)
	for _, a := range apps {
		rollouts, e := tx.ListRollouts(ws, a.ID, all)
		put("rollouts of "+a.ID, rollouts, e)
		history, e := tx.ListHistory(ws, a.ID, all)
		put("history of "+a.ID, history, e)
		topology, e := tx.ListTopology([]string{a.ID})
		put("topology of "+a.ID, topology, e)
		pins, e := tx.ListPins([]string{a.ID})
		put("pins of "+a.ID, pins, e)
	}
	regions, e := tx.ListRegions(ws, all)
	put("regions", regions, e)
	for _, r := range regions {
		heads, e := tx.GetHeads([]string{r.ID})
		put("head of "+r.ID, heads, e)
		quarantine, e := tx.ListQuarantine(r.ID, all)
		put("quarantine of "+r.ID, quarantine, e)
	}
	endpoints, e := tx.ListNotificationEndpoints(ws)
	put("notification endpoints", endpoints, e)
	freezes, e := tx.ListFreezes(ws, all)
	put("freezes", freezes, e)
	if ws != "" {
		features, e := tx.GetFeatures(ws)
		put("features", features, e)
	}
	presets, e := tx.ListPresets(ws)
	put("presets", presets, e)
	tiers, e := tx.ListTiers()
	put("tiers", tiers, e)
	audit, e := tx.ListAudit(ws, all)
	put("audit", audit, e)
	return err
}

func detailOf(err error) *windlassv1.ErrorDetail { return rpc.DetailOf(err) }
