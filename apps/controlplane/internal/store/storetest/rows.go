package storetest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// awkward is text that breaks code which builds SQL by hand or counts in the wrong character
// set: quotes, a backslash, a placeholder, NUL, four-byte runes, combining marks,
// right-to-left.
const awkward = "Robert'); DROP TABLE apps;-- \"q\" `b` \\ ? %s $1 \x00 \r\n\t é é 日本 🚀 שלום"

// kept is a row of one kind: how to store it, and how to read it back.
type kept struct {
	kind   string
	insert func(store.Tx) error
	read   func(store.Tx) (any, error)
	want   any
}

func keepKind[V any](kind string, row V, insert func(store.Tx, V) error, read func(store.Tx) (V, error)) kept {
	return kept{
		kind:   kind,
		insert: func(tx store.Tx) error { return insert(tx, row) },
		read:   func(tx store.Tx) (any, error) { return read(tx) },
		want:   row,
	}
}

// everyKind returns one row of every kind that is stored as it is given, with every
// field set.
func everyKind() []kept {
	ws := filledRow[model.Workspace]()
	key := filledRow[model.APIKey]()
	prj := filledRow[model.Project]()
	env := filledRow[model.Environment]()
	app := filledRow[model.App]()
	app.DeletedAt = 0
	dep := filledRow[model.Deployment]()
	rol := filledRow[model.Rollout]()
	top := filledRow[model.Topology]()
	route := filledRow[model.Route]()
	obs := filledRow[model.Observed]()
	ack := filledRow[model.RouteObserved]()
	ins := filledRow[model.Instance]()
	reg := filledRow[model.Region]()
	tok := filledRow[model.JoinToken]()
	tokenHash := bytes.Clone(tok.Hash)
	qua := filledRow[model.Quarantined]()
	his := filledRow[model.History]()
	aud := filledRow[model.Audit]()
	ide := filledRow[model.Idempotency]()
	return []kept{
		keepKind("workspace", ws, store.Tx.InsertWorkspace, func(tx store.Tx) (model.Workspace, error) { return tx.GetWorkspace(ws.ID) }),
		keepKind("API key", key, store.Tx.InsertAPIKey, func(tx store.Tx) (model.APIKey, error) { return tx.GetAPIKey(key.WorkspaceID, key.ID) }),
		keepKind("project", prj, store.Tx.InsertProject, func(tx store.Tx) (model.Project, error) { return tx.GetProject(prj.WorkspaceID, prj.ID) }),
		keepKind("environment", env, store.Tx.InsertEnvironment, func(tx store.Tx) (model.Environment, error) { return tx.GetEnvironment(env.WorkspaceID, env.ID) }),
		keepKind("app", app, store.Tx.InsertApp, func(tx store.Tx) (model.App, error) { return tx.GetApp(app.WorkspaceID, app.ID) }),
		keepKind("deployment", dep, store.Tx.InsertDeployment, func(tx store.Tx) (model.Deployment, error) { return tx.GetDeployment(dep.WorkspaceID, dep.ID) }),
		keepKind("rollout", rol, store.Tx.InsertRollout, func(tx store.Tx) (model.Rollout, error) { return tx.GetRollout(rol.WorkspaceID, rol.ID) }),
		keepKind("topology", []model.Topology{top}, store.Tx.PutTopology, func(tx store.Tx) ([]model.Topology, error) { return tx.ListTopology([]string{top.AppID}) }),
		keepKind("route", []model.Route{route}, store.Tx.PutRoutes, func(tx store.Tx) ([]model.Route, error) { return tx.ListRoutes([]string{route.AppID}) }),
		keepKind("observed", []model.Observed{obs}, store.Tx.PutObserved, func(tx store.Tx) ([]model.Observed, error) {
			return tx.GetObserved(map[string][]string{obs.RegionID: {obs.DeploymentID}})
		}),
		keepKind("observed route", []model.RouteObserved{ack}, store.Tx.PutRouteObserved, func(tx store.Tx) ([]model.RouteObserved, error) {
			return tx.ListRouteObserved([]string{ack.AppID})
		}),
		keepKind("instance", []model.Instance{ins}, store.Tx.PutInstances, func(tx store.Tx) ([]model.Instance, error) {
			i, err := tx.GetInstance(ins.WorkspaceID, ins.ID)
			return []model.Instance{i}, err
		}),
		keepKind("region", reg, store.Tx.InsertRegion, func(tx store.Tx) (model.Region, error) { return tx.GetRegion(reg.ID) }),
		keepKind("join token", tok, store.Tx.InsertJoinToken, func(tx store.Tx) (model.JoinToken, error) { return tx.GetJoinTokenByHash(tokenHash) }),
		keepKind("quarantined workload", []model.Quarantined{qua}, func(tx store.Tx, rows []model.Quarantined) error {
			return tx.SetQuarantine(qua.RegionID, rows)
		}, func(tx store.Tx) ([]model.Quarantined, error) {
			return tx.ListQuarantine(qua.RegionID, store.Page{Limit: 9})
		}),
		keepKind("history entry", []model.History{his}, store.Tx.InsertHistory, func(tx store.Tx) ([]model.History, error) {
			return tx.ListHistory(his.WorkspaceID, his.AppID, store.Page{Limit: 9})
		}),
		keepKind("audit entry", []model.Audit{aud}, func(tx store.Tx, rows []model.Audit) error { return tx.InsertAudit(rows...) },
			func(tx store.Tx) ([]model.Audit, error) { return tx.ListAudit(aud.WorkspaceID, store.Page{Limit: 9}) }),
		keepKind("idempotency record", ide, store.Tx.InsertIdempotency, func(tx store.Tx) (model.Idempotency, error) {
			return tx.GetIdempotency(ide.WorkspaceID, ide.Key)
		}),
	}
}

func testRows(t *testing.T, setup setup) {
	t.Run("every field of every row survives the round trip", func(t *testing.T) {
		w := setup(t)
		for _, k := range everyKind() {
			w.update(k.insert)
			requireSame(t, k.want, read(w, k.read))
		}
	})

	t.Run("an id that is taken is refused", func(t *testing.T) {
		w := setup(t)
		for _, k := range everyKind() {
			w.update(k.insert)
			switch k.kind {
			case "topology", "route", "observed", "observed route", "instance", "quarantined workload":
				w.update(k.insert) // they are put, not inserted
			default:
				w.requireFails(model.ErrExists, k.insert)
			}
			requireSame(t, k.want, read(w, k.read))
		}
	})

	t.Run("a missing row is not found", func(t *testing.T) {
		w := setup(t)
		for _, k := range everyKind() {
			switch k.kind {
			case "workspace", "API key", "project", "environment", "app", "deployment", "rollout", "instance", "region", "join token", "idempotency record":
				requireMissing(w, k.read)
			default:
				require.Empty(t, read(w, k.read), k.kind)
			}
		}
	})

	t.Run("text fields keep any text", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.newApp("chat")
		app.Description, app.Message = awkward, awkward
		d := w.newDeployment(app, 1)
		d.Message = awkward
		d.Spec.Env = map[string]string{"A": strings.ReplaceAll(awkward, "\r", "")}
		top := newTopology(d, region, 1)
		top.Reason = awkward
		o := newReport(d, region, 1)
		o.Message, o.ReasonMessage = awkward, awkward
		i := newInstance(d, region, "ins_1", 1)
		i.Message, i.GPUs = awkward, []string{awkward, ""}
		h := model.History{ID: "his_1", WorkspaceID: w.ws, AppID: app.ID, At: now, What: "Deployed", Why: awkward, Who: awkward}
		a := model.Audit{ID: "aud_1", WorkspaceID: w.ws, At: now, Actor: awkward, Source: awkward, Before: awkward, After: awkward}
		idem := model.Idempotency{WorkspaceID: w.ws, Key: "key-'\"\\-é🚀", RequestHash: []byte{0, 255}, Procedure: "p", Response: []byte(awkward), CreatedAt: now}
		w.update(func(tx store.Tx) error {
			require.NoError(t, tx.InsertApp(app))
			require.NoError(t, tx.InsertDeployment(d))
			require.NoError(t, tx.PutTopology([]model.Topology{top}))
			require.NoError(t, tx.PutObserved([]model.Observed{o}))
			require.NoError(t, tx.PutInstances([]model.Instance{i}))
			require.NoError(t, tx.InsertHistory([]model.History{h}))
			require.NoError(t, tx.InsertAudit(a))
			require.NoError(t, tx.InsertIdempotency(idem))
			env, err := tx.LockEnvironment(w.ws, w.env)
			require.NoError(t, err)
			env.Variables = map[string]string{"TEXT": awkward, "EMPTY": ""}
			return tx.UpdateEnvironment(env)
		})
		require.NoError(t, w.s.View(t.Context(), func(tx store.Tx) error {
			gotApp, err := tx.GetApp(w.ws, app.ID)
			require.NoError(t, err)
			require.Equal(t, app, gotApp)
			gotDep, err := tx.GetDeployment(w.ws, d.ID)
			require.NoError(t, err)
			requireSame(t, d, gotDep)
			rows, err := tx.ListTopology([]string{app.ID})
			require.NoError(t, err)
			require.Equal(t, []model.Topology{top}, rows)
			seen, err := tx.ListObserved([]string{app.ID})
			require.NoError(t, err)
			require.Equal(t, []model.Observed{o}, seen)
			gotIns, err := tx.GetInstance(w.ws, i.ID)
			require.NoError(t, err)
			require.Equal(t, i, gotIns)
			history, err := tx.ListHistory(w.ws, app.ID, store.Page{Limit: 9})
			require.NoError(t, err)
			require.Equal(t, []model.History{h}, history)
			audit, err := tx.ListAudit(w.ws, store.Page{Limit: 9})
			require.NoError(t, err)
			require.Equal(t, []model.Audit{a}, audit)
			gotIdem, err := tx.GetIdempotency(w.ws, idem.Key)
			require.NoError(t, err)
			require.Equal(t, idem, gotIdem)
			env, err := tx.GetEnvironment(w.ws, w.env)
			require.NoError(t, err)
			require.Equal(t, map[string]string{"TEXT": awkward, "EMPTY": ""}, env.Variables)
			return nil
		}))
	})

	t.Run("keys that differ only in case, accent or trailing space are different", func(t *testing.T) {
		w := setup(t)
		keys := []string{"key", "KEY", "kéy", "key ", "key\x00"}
		for _, k := range keys {
			w.update(func(tx store.Tx) error {
				return tx.InsertIdempotency(model.Idempotency{WorkspaceID: w.ws, Key: k, RequestHash: []byte(k), Response: []byte(k), CreatedAt: now})
			})
		}
		for _, k := range keys {
			got := read(w, func(tx store.Tx) (model.Idempotency, error) { return tx.GetIdempotency(w.ws, k) })
			require.Equal(t, []byte(k), got.RequestHash, "%q", k)
		}
	})

	t.Run("SQL in an id or a name finds nothing and harms nothing", func(t *testing.T) {
		w := setup(t)
		app := w.insertApp("chat")
		for _, s := range []string{"' OR '1'='1", "x'; DROP TABLE apps; --", "%", "_", "\\", "app\x00", "ü"} {
			requireMissing(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, s) })
			requireMissing(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(s, app.ID) })
			requireMissing(w, func(tx store.Tx) (model.App, error) { return tx.GetAppByName(w.ws, w.env, s) })
			requireMissing(w, func(tx store.Tx) (model.Workspace, error) { return tx.GetWorkspaceByName(s) })
			require.Empty(t, read(w, func(tx store.Tx) ([]model.App, error) { return tx.ListApps(s, "", store.Page{Limit: 9}) }))
		}
		require.Equal(t, app, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }))
	})

	t.Run("changing a row after it was stored or read changes nothing in the store", func(t *testing.T) {
		w := setup(t)
		for _, k := range everyKind() {
			w.update(k.insert)
			scribbleOver(k.want)
			got := read(w, k.read)
			for _, fresh := range everyKind() {
				if fresh.kind == k.kind {
					requireSame(t, fresh.want, got)
				}
			}
			scribbleOver(got)
			for _, fresh := range everyKind() {
				if fresh.kind == k.kind {
					requireSame(t, fresh.want, read(w, k.read))
				}
			}
		}
		region := w.newRegion("eu")
		w.commitChange(region, 1)
		head, feed := w.headOf(region), w.readFeed(region)
		want := bytes.Clone(head.Chain)
		clear(head.Chain)
		clear(feed[0].Chain)
		require.Equal(t, want, w.headOf(region).Chain)
		require.Equal(t, want, w.readFeed(region)[0].Chain)
		at := read(w, func(tx store.Tx) ([]byte, error) { return tx.ChainAt(region, 1) })
		clear(at)
		require.Equal(t, want, read(w, func(tx store.Tx) ([]byte, error) { return tx.ChainAt(region, 1) }))
	})
}

// scribbleOver writes into everything that a row points to.
func scribbleOver(row any) {
	switch r := row.(type) {
	case model.APIKey:
		clear(r.Hash)
	case model.Environment:
		r.Variables["mine"] = "now"
	case model.Deployment:
		r.Spec.Command[0] = "scribbled"
		r.Spec.Env["mine"] = "now"
		clear(r.SpecHash)
		clear(r.MadeAs)
	case []model.Route:
		r[0].Hosts[0] = "scribbled"
		clear(r[0].Policy)
	case []model.Instance:
		r[0].GPUs[0] = "scribbled"
	case model.Region:
		r.Labels["mine"] = "now"
		r.AgentFeatures[0] = "scribbled"
		clear(r.Capacity)
	case model.JoinToken:
		clear(r.Hash)
	case model.Idempotency:
		clear(r.RequestHash)
		clear(r.Response)
	}
}

// newReport is a region's report of a deployment. Every count is the guard's number.
func newReport(d model.Deployment, regionID string, guard model.Guard) model.Observed {
	n := int32(guard % 1000)
	return model.Observed{
		WorkspaceID: d.WorkspaceID, AppID: d.AppID, DeploymentID: d.ID, RegionID: regionID, Guard: guard,
		AppliedEpoch: 1, AppliedGeneration: int64(guard), Phase: 2, CountsGeneration: int64(guard),
		Pending: n, Running: n, Ready: n, Draining: n, Fail: n, ReadyReplicas: n, Doomed: n,
		Message: "of one report", RoleCounts: "roles\x00\xff", UpdatedAt: now,
	}
}

func newAck(a model.App, regionID string, guard model.Guard) model.RouteObserved {
	return model.RouteObserved{
		AppID: a.ID, RegionID: regionID, Guard: guard, Epoch: 1, Generation: int64(guard), Phase: 2, UpdatedAt: now,
	}
}

func newInstance(d model.Deployment, regionID, id string, guard model.Guard) model.Instance {
	return model.Instance{
		ID: id, WorkspaceID: d.WorkspaceID, AppID: d.AppID, DeploymentID: d.ID, RegionID: regionID,
		Role: "main", Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY, Address: "127.0.0.1:8000",
		Restarts: int32(guard % 1000), GPUs: []string{"GPU-1"}, Guard: guard, StartedAt: now, ReadyAt: now, UpdatedAt: now,
	}
}
