package fleet

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

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/apps/controlplane/internal/trail"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/seal"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	region  = "reg_1"
	joinID  = "join_0123456789abcdef"
	otherID = "join_fedcba9876543210"
)

// flaky is a store that can be unreachable, and that counts transactions.
type flaky struct {
	store.Bound[Tx]
	away           *atomic.Bool
	views, updates *atomic.Int64
}

var errAway = errors.New("the database is away")

func (f flaky) Update(ctx context.Context, fn func(Tx) error) error {
	f.updates.Add(1)
	if f.away.Load() {
		return errAway
	}
	return f.Bound.Update(ctx, fn)
}

func (f flaky) View(ctx context.Context, fn func(Tx) error) error {
	f.views.Add(1)
	if f.away.Load() {
		return errAway
	}
	return f.Bound.View(ctx, fn)
}

type harness struct {
	t        *testing.T
	db       *memory.Store
	svc      *Service
	registry *prometheus.Registry
	away     atomic.Bool
	views    atomic.Int64
	updates  atomic.Int64
}

func newBox(t *testing.T) *seal.Box {
	key, err := seal.Generate()
	require.NoError(t, err)
	box, err := seal.New(key)
	require.NoError(t, err)
	return box
}

func setup(t *testing.T) *harness {
	h := &harness{t: t, db: memory.New(func() int64 { return time.Now().UnixMilli() }), registry: prometheus.NewRegistry()}
	svc, err := New(Config{
		Store: flaky{store.Bind[Tx](h.db), &h.away, &h.views, &h.updates}, Box: newBox(t),
		Log: slog.New(slog.DiscardHandler), Registerer: h.registry, KeepChanges: 10, LookupTXT: new(dns).lookup,
	})
	require.NoError(t, err)
	h.svc = svc
	h.update(func(tx store.Tx) error {
		return errors.Join(
			tx.InsertWorkspace(model.Workspace{ID: "ws_1", Name: "w", ResourceVersion: 1}),
			tx.InsertRegion(model.Region{ID: region, WorkspaceID: "ws_1", Name: "us-east-1", ResourceVersion: 1}),
			tx.InsertRegion(model.Region{ID: "reg_2", WorkspaceID: "ws_1", Name: "eu-west-1", ResourceVersion: 1}),
			tx.InsertApp(model.App{ID: "app_1", WorkspaceID: "ws_1", EnvironmentID: "env_1", Name: "a", ResourceVersion: 1}))
	})
	return h
}

func (h *harness) update(fn func(store.Tx) error) {
	h.t.Helper()
	require.NoError(h.t, h.db.Update(context.Background(), fn))
}

func (h *harness) token(value string, ttl time.Duration) {
	now := time.Now()
	h.update(func(tx store.Tx) error {
		return tx.InsertJoinToken(NewJoinToken(value, region, now.UnixMilli(), now.Add(ttl).UnixMilli()))
	})
}

func (h *harness) join(token, id string) (*agentv1.JoinResponse, error) {
	return h.svc.Join(h.t.Context(), &agentv1.JoinRequest{Token: token, JoinId: id})
}

func (h *harness) revoke() {
	h.update(func(tx store.Tx) error {
		r, err := tx.LockRegion(region)
		r.CredentialNotBefore = time.Now().UnixMilli() + 1
		return errors.Join(err, tx.UpdateRegion(r))
	})
}

// as returns the context of a call with the credential of a region.
func (h *harness) as(region string) context.Context {
	return WithIdentity(h.t.Context(), Identity{RegionID: region, IssuedAt: time.Now().UnixMilli()})
}

func requireRefused(t *testing.T, err error, code connect.Code, reason windlassv1.ErrorReason) {
	t.Helper()
	require.Equal(t, code, connect.CodeOf(err), "%v", err)
	require.Equal(t, reason, rpc.ReasonOf(err))
}

const (
	unauthenticated = windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED
	tokenInvalid    = windlassv1.ErrorReason_ERROR_REASON_JOIN_TOKEN_INVALID
)

func TestCredential_MustBeUnexpiredAndOfThisControlPlane(t *testing.T) {
	h, other := setup(t), setup(t)
	now := time.Now()
	good, err := h.svc.issueCredential(region, nil, now)
	require.NoError(t, err)
	foreign, err := other.svc.issueCredential(region, nil, now)
	require.NoError(t, err)

	id, err := h.svc.Verify(good.Value, now.Add(24*time.Hour-time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, Identity{RegionID: region, IssuedAt: now.UnixMilli()}, id)

	_, err = h.svc.Verify(good.Value, now.Add(24*time.Hour))
	requireRefused(t, err, connect.CodeUnauthenticated, unauthenticated)
	for name, value := range map[string]string{
		"empty": "", "another kind of key": "wlk_abc", "no content": CredentialPrefix, "not base64": CredentialPrefix + "%%",
		"another control plane's": foreign.Value, "cut": good.Value[:len(good.Value)-4],
		"tampered": CredentialPrefix + flip(strings.TrimPrefix(good.Value, CredentialPrefix)),
	} {
		_, err := h.svc.Verify(value, now)
		require.Error(t, err, name)
		requireRefused(t, err, connect.CodeUnauthenticated, unauthenticated)
	}
}

func flip(s string) string {
	b := []byte(s)
	if b[len(b)/2] == 'A' {
		b[len(b)/2] = 'B'
	} else {
		b[len(b)/2] = 'A'
	}
	return string(b)
}

func TestJoinToken_ServesOneAgent(t *testing.T) {
	h := setup(t)
	h.token("token", time.Hour)
	resp, err := h.join("token", joinID)
	require.NoError(t, err)
	require.Equal(t, region, resp.RegionId)
	id, err := h.svc.Verify(resp.Credential.Value, time.Now())
	require.NoError(t, err)
	require.Equal(t, region, id.RegionID)

	_, err = h.join("token", joinID)
	require.NoError(t, err, "an agent that ended before it stored its credential can join again")
	_, err = h.join("token", otherID)
	requireRefused(t, err, connect.CodePermissionDenied, tokenInvalid)
	_, err = h.join("never made", joinID)
	requireRefused(t, err, connect.CodePermissionDenied, tokenInvalid)
}

func TestJoinToken_ExpiredIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.token("token", time.Hour)
		_, err := h.join("token", joinID)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		_, err = h.join("token", joinID)
		requireRefused(t, err, connect.CodePermissionDenied, tokenInvalid)
	})
}

func TestRevocation_EndsCredentialsAndEarlierTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.token("token", time.Hour)
		before := h.as(region)
		_, err := h.svc.RenewCredential(before, &agentv1.RenewCredentialRequest{})
		require.NoError(t, err)
		time.Sleep(time.Second)
		h.revoke()
		_, err = h.svc.RenewCredential(before, &agentv1.RenewCredentialRequest{})
		requireRefused(t, err, connect.CodeUnauthenticated, unauthenticated)
		_, err = h.svc.GetSecrets(before, &agentv1.GetSecretsRequest{DeploymentId: "dep_1"})
		requireRefused(t, err, connect.CodeUnauthenticated, unauthenticated)
		_, err = h.join("token", joinID)
		requireRefused(t, err, connect.CodePermissionDenied, tokenInvalid)

		time.Sleep(time.Second)
		h.token("a later one", time.Hour)
		_, err = h.join("a later one", joinID)
		require.NoError(t, err)
		_, err = h.svc.RenewCredential(h.as(region), &agentv1.RenewCredentialRequest{})
		require.NoError(t, err)
	})
}

func TestSecrets_GoOnlyToRegionsThatRunTheDeployment(t *testing.T) {
	h := setup(t)
	const value = "hunter2"
	sealed, err := h.svc.cfg.Box.Seal([]byte(value), model.SecretContext("env_1", "key", 1))
	require.NoError(t, err)
	pull, err := h.svc.cfg.Box.Seal([]byte("{}"), model.SecretContext("env_1", "registry", 1))
	require.NoError(t, err)
	place := func(status windlassv1.TopologyStatus, generation int64) {
		h.update(func(tx store.Tx) error {
			return tx.PutTopology([]model.Topology{{
				WorkspaceID: "ws_1", AppID: "app_1", DeploymentID: "dep_1", RegionID: region, Generation: generation, Status: status,
			}})
		})
	}
	h.update(func(tx store.Tx) error {
		return errors.Join(
			tx.InsertSecretVersion(model.Secret{WorkspaceID: "ws_1", EnvironmentID: "env_1", Name: "key", Version: 1, Ciphertext: sealed}),
			tx.InsertSecretVersion(model.Secret{WorkspaceID: "ws_1", EnvironmentID: "env_1", Name: "registry", Version: 1, Ciphertext: pull}),
			tx.InsertDeployment(model.Deployment{ID: "dep_1", WorkspaceID: "ws_1", AppID: "app_1", Version: 1, Spec: &windlassv1.DeploymentSpec{
				Secrets: []*windlassv1.SecretReference{{Secret: "key", EnvName: "A"}, {Secret: "key", EnvName: "B"}, {Secret: "registry", ImagePull: true}},
			}}))
	})
	place(windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING, 3)
	get := func(ctx context.Context, id string, generation int64) (*agentv1.GetSecretsResponse, error) {
		return h.svc.GetSecrets(ctx, &agentv1.GetSecretsRequest{DeploymentId: id, Generation: generation})
	}

	resp, err := get(h.as(region), "dep_1", 3)
	require.NoError(t, err)
	require.Len(t, resp.Secrets, 2, "each secret once, including secrets without a variable")
	require.Equal(t, value, resp.Secrets[0].Value)
	require.Equal(t, "registry", resp.Secrets[1].Secret)
	require.Equal(t, int32(1), resp.Secrets[1].Version)
	_, err = get(h.as(region), "dep_1", 2)
	require.NoError(t, err, "an agent that has not received the latest change")

	// Of secrets in overrides, a region gets only its own.
	h.update(func(tx store.Tx) error {
		only := func(region, secret string) *windlassv1.PinnedOverride {
			return &windlassv1.PinnedOverride{Region: region, RegionId: region, Values: &windlassv1.Override{
				Secrets: []*windlassv1.SecretReference{{Secret: secret, EnvName: "A"}},
			}}
		}
		return errors.Join(
			tx.InsertDeployment(model.Deployment{ID: "dep_2", WorkspaceID: "ws_1", AppID: "app_1", Version: 2, Spec: &windlassv1.DeploymentSpec{
				PinnedOverrides: []*windlassv1.PinnedOverride{only(region, "registry"), only("reg_2", "key")},
			}}),
			tx.PutTopology([]model.Topology{{
				WorkspaceID: "ws_1", AppID: "app_1", DeploymentID: "dep_2", RegionID: region, Generation: 1,
				Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
			}}))
	})
	resp, err = get(h.as(region), "dep_2", 1)
	require.NoError(t, err)
	require.Len(t, resp.Secrets, 1)
	require.Equal(t, "registry", resp.Secrets[0].Secret)

	// A reference with a version gets that version, or the newest version after that version was deleted.
	next, err := h.svc.cfg.Box.Seal([]byte("hunter3"), model.SecretContext("env_1", "key", 2))
	require.NoError(t, err)
	h.update(func(tx store.Tx) error {
		named := func(id string, version, of int32) error {
			return errors.Join(
				tx.InsertDeployment(model.Deployment{ID: id, WorkspaceID: "ws_1", AppID: "app_1", Version: of, Spec: &windlassv1.DeploymentSpec{
					Secrets: []*windlassv1.SecretReference{{Secret: "key", EnvName: "A", Version: version}},
				}}),
				tx.PutTopology([]model.Topology{{
					WorkspaceID: "ws_1", AppID: "app_1", DeploymentID: id, RegionID: region, Generation: 1,
					Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
				}}))
		}
		return errors.Join(
			tx.InsertSecretVersion(model.Secret{WorkspaceID: "ws_1", EnvironmentID: "env_1", Name: "key", Version: 2, Ciphertext: next}),
			named("dep_3", 1, 3), named("dep_4", 2, 4), named("dep_5", 9, 5))
	})
	for id, want := range map[string]string{"dep_3": value, "dep_4": "hunter3", "dep_5": "hunter3"} {
		resp, err = get(h.as(region), id, 1)
		require.NoError(t, err, id)
		require.Equal(t, want, resp.Secrets[0].Value, id)
	}

	denied := windlassv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED
	_, err = get(h.as("reg_2"), "dep_1", 3)
	requireRefused(t, err, connect.CodePermissionDenied, denied)
	foreign := err
	_, err = get(h.as(region), "dep_unknown", 3)
	requireRefused(t, err, connect.CodePermissionDenied, denied)
	require.Equal(t, foreign.Error(), err.Error(), "another region's deployment and an unknown one get the same error")
	_, err = get(h.as(region), "dep_1", 4)
	requireRefused(t, err, connect.CodePermissionDenied, denied)
	_, err = get(t.Context(), "dep_1", 3)
	requireRefused(t, err, connect.CodeUnauthenticated, unauthenticated)
	for i, status := range []windlassv1.TopologyStatus{windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING, windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED} {
		place(status, int64(4+i))
		_, err = get(h.as(region), "dep_1", 4)
		requireRefused(t, err, connect.CodePermissionDenied, denied)
	}
}

func (h *harness) status() (s windlassv1.RegionStatus) {
	require.NoError(h.t, h.db.View(context.Background(), func(tx store.Tx) error {
		r, err := tx.GetRegion(region)
		s = r.Status
		return err
	}))
	return s
}

func (h *harness) connect() {
	h.update(func(tx store.Tx) error {
		_, _, err := tx.StartSession(region, "session-1", (15 * time.Second).Milliseconds(), model.Region{})
		return err
	})
}

func TestLease_ExpiresOnlyAfterAHealthyTTL(t *testing.T) {
	const connected, unreachable = windlassv1.RegionStatus_REGION_STATUS_CONNECTED, windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.update(func(tx store.Tx) error {
			return tx.PutTopology([]model.Topology{{
				WorkspaceID: "ws_1", AppID: "app_1", DeploymentID: "dep_1", RegionID: region, Generation: 1,
				Status: windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
			}})
		})
		h.update(func(tx store.Tx) error {
			return tx.InsertNotificationEndpoint(model.NotificationEndpoint{ID: "nte_1", WorkspaceID: "ws_1", Name: "pager", Kinds: model.AllNotificationKinds()})
		})
		h.connect()
		time.Sleep(time.Hour) // no control plane ran, so the lease has ended
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.svc.Sweep(ctx) }()
		time.Sleep(19 * time.Second)
		require.Equal(t, connected, h.status(), "after a start, agents have a full lease to return")

		h.away.Store(true)
		time.Sleep(time.Minute)
		h.away.Store(false)
		time.Sleep(19 * time.Second)
		require.Equal(t, connected, h.status(), "also after an outage of the database")

		time.Sleep(30 * time.Second)
		require.Equal(t, unreachable, h.status())
		h.update(func(tx store.Tx) error {
			wakes, err := tx.DueWakes(0, 0, 10)
			require.Len(t, wakes, 1, "its apps are woken")
			told, listErr := tx.ListDeliveries("nte_1", -1, store.Page{})
			require.Len(t, told, 1, "endpoints are notified")
			require.Equal(t, []any{model.NotifyRegionUnreachable, "us-east-1", int32(1)}, []any{told[0].Kind, told[0].Region, told[0].Apps})
			return errors.Join(err, listErr)
		})
		cancel()
		require.NoError(t, <-done)
	})
}

func TestMaintenance_KeepsWhatIsNeededAndDeletesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		row := func(id string, status windlassv1.InstanceStatus) model.Instance {
			return model.Instance{
				ID: id, WorkspaceID: "ws_1", AppID: "app_1", DeploymentID: "dep_1", RegionID: region, Guard: 1,
				Status: status, UpdatedAt: time.Now().UnixMilli(),
			}
		}
		var rows []model.Instance
		for i := range 2*maintainBatch + 1 {
			rows = append(rows, row(fmt.Sprint("ins_old_", i), windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED))
		}
		rows = append(rows, row("ins_live", windlassv1.InstanceStatus_INSTANCE_STATUS_READY))
		h.update(func(tx store.Tx) error { return tx.PutInstances(rows) })
		for generation := range int64(25) {
			h.update(func(tx store.Tx) error {
				tx.Change(region, model.KindDeployment, "dep_1", generation+1)
				return nil
			})
		}
		time.Sleep(25 * time.Hour)
		h.update(func(tx store.Tx) error {
			return tx.PutInstances([]model.Instance{row("ins_new", windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED)})
		})
		require.NoError(t, h.svc.maintainAll(t.Context(), time.Now()))

		require.NoError(t, h.db.View(t.Context(), func(tx store.Tx) error {
			left, err := tx.ListInstances(model.InstanceFilter{IncludeTerminated: true}, model.Page{Limit: 10})
			require.NoError(t, err)
			require.Len(t, left, 2)
			require.Equal(t, "ins_live", left[0].ID)
			require.Equal(t, "ins_new", left[1].ID)
			changes, err := tx.Changes(map[string]int64{region: 15}, 100)
			require.Len(t, changes, 10)
			_, gone := tx.ChainAt(region, 14)
			require.ErrorIs(t, gone, model.ErrNotFound)
			return err
		}))
	})
}

func TestScrape_CostsAtMostOneQueryInFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := setup(t)
		h.update(func(tx store.Tx) error {
			var rows []model.Instance
			for i, status := range []windlassv1.InstanceStatus{
				windlassv1.InstanceStatus_INSTANCE_STATUS_READY, windlassv1.InstanceStatus_INSTANCE_STATUS_READY,
				windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED, windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED,
			} {
				rows = append(rows, model.Instance{ID: fmt.Sprint("ins_", i), RegionID: region, Status: status, Guard: 1})
			}
			return tx.PutInstances(rows)
		})
		scrape := func() map[string]float64 {
			families, err := h.registry.Gather()
			require.NoError(t, err)
			out := map[string]float64{}
			for _, f := range families {
				for _, m := range f.Metric {
					name := f.GetName()
					for _, l := range m.Label {
						name += " " + l.GetValue()
					}
					if m.Gauge != nil {
						out[name] = m.Gauge.GetValue()
					}
				}
			}
			return out
		}
		for range 10 {
			got := scrape()
			require.EqualValues(t, 3, got["deployment_instances_total"])
			require.EqualValues(t, 2, got["deployment_instances_by_status ready"])
			require.EqualValues(t, 1, got["deployment_instances_by_status terminated"])
			require.Contains(t, got, "deployment_instances_by_status pending")
		}
		require.EqualValues(t, 1, h.views.Load())

		time.Sleep(5 * time.Second)
		h.away.Store(true)
		require.NotContains(t, scrape(), "deployment_instances_total", "no value is better than an old value")
		scrape()
		require.EqualValues(t, 2, h.views.Load(), "an unreachable database gets only one query")
		time.Sleep(5 * time.Second)
		h.away.Store(false)
		require.EqualValues(t, 3, scrape()["deployment_instances_total"])
	})
}

func TestFailedJoins_AreLimitedAndWriteNothing(t *testing.T) {
	h := setup(t)
	h.svc.cfg.FailedJoins = admission.NewBuckets(admission.PerMinute(2))
	h.token("token", time.Hour)
	for range 2 {
		_, err := h.join("never made", joinID)
		requireRefused(t, err, connect.CodePermissionDenied, tokenInvalid)
	}
	require.Zero(t, h.updates.Load(), "no write transaction")
	views := h.views.Load()
	_, err := h.join("never made", joinID)
	requireRefused(t, err, connect.CodeResourceExhausted, windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED)
	require.Equal(t, views, h.views.Load(), "the database is not read")

	h.svc.cfg.FailedJoins = admission.NewBuckets(admission.PerMinute(1))
	for range 3 {
		_, err = h.join("token", joinID)
		require.NoError(t, err, "successful joins do not count")
	}
	h.away.Store(true)
	for range 3 {
		_, err = h.join("token", joinID)
		require.ErrorIs(t, err, errAway, "joins that fail because of an outage do not count")
	}
}

func TestAudit_HasReadsOfSecretsRenewalsAndRefusedJoins(t *testing.T) {
	h := setup(t)
	written, err := trail.New(store.Bind[trail.Tx](h.db), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	h.svc.cfg.Trail = written
	h.token("token", time.Hour)
	_, err = h.join("token", joinID)
	require.NoError(t, err)
	_, err = h.join("never made", joinID)
	require.Error(t, err)
	_, err = h.svc.RenewCredential(h.as(region), &agentv1.RenewCredentialRequest{})
	require.NoError(t, err)
	_, err = h.svc.GetSecrets(h.as(region), &agentv1.GetSecretsRequest{DeploymentId: "dep_none"})
	require.Error(t, err)
	_, err = h.svc.Admit(t.Context(), rpc.Call{Procedure: "/windlass.agent.v1.AgentService/Report"})
	require.Error(t, err)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, written.Run(stopped))

	var got []string
	require.NoError(t, h.db.View(t.Context(), func(tx store.Tx) error {
		for _, workspace := range []string{"", "ws_1"} {
			rows, err := tx.ListAudit(workspace, model.Page{Limit: 100})
			if err != nil {
				return err
			}
			for _, r := range rows {
				after, _, _ := strings.Cut(r.After, `,"until"`)
				got = append(got, r.Actor+r.Procedure[strings.LastIndex(r.Procedure, "/"):]+" "+r.ResourceID+" "+after)
			}
		}
		return nil
	}))
	require.Subset(t, got, []string{
		`/Join  {"outcome":"join_token_invalid","count":1`,
		`/Report  {"outcome":"unauthenticated","count":1`,
		`agent/RenewCredential reg_1 {"outcome":"done","count":1`,
		`agent/GetSecrets dep_none {"outcome":"permission_denied","count":1`,
	}, "%v", got)
	require.Contains(t, strings.Join(got, "\n"), `agent/Join reg_1 {"claimed_hostname":`)
}
