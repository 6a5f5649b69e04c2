package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (w *fixture) newKey(name string) model.APIKey {
	id := ident.New("key")
	return model.APIKey{
		ID: id, WorkspaceID: w.ws, Name: name, Role: windlassv1.Role_ROLE_OWNER, Prefix: "wl_",
		Hash: []byte(id[len(id)-32:]), CreatedAt: now,
	}
}

func testTenants(t *testing.T, setup setup) {
	t.Run("tenant rows are found by name", func(t *testing.T) {
		w := setup(t)
		key := w.newKey("ci")
		w.update(func(tx store.Tx) error { return tx.InsertAPIKey(key) })
		require.Equal(t, w.ws, read(w, func(tx store.Tx) (model.Workspace, error) { return tx.GetWorkspaceByName("acme") }).ID)
		require.Equal(t, w.prj, read(w, func(tx store.Tx) (model.Project, error) { return tx.GetProjectByName(w.ws, "default") }).ID)
		require.Equal(t, w.env, read(w, func(tx store.Tx) (model.Environment, error) {
			return tx.GetEnvironmentByName(w.ws, w.prj, "production")
		}).ID)
		require.Equal(t, key, read(w, func(tx store.Tx) (model.APIKey, error) { return tx.GetAPIKeyByHash(key.Hash) }))
		requireMissing(w, func(tx store.Tx) (model.Workspace, error) { return tx.GetWorkspaceByName("other") })
		requireMissing(w, func(tx store.Tx) (model.Project, error) { return tx.GetProjectByName(w.ws, "other") })
		requireMissing(w, func(tx store.Tx) (model.Environment, error) { return tx.GetEnvironmentByName(w.ws, w.prj, "other") })
		requireMissing(w, func(tx store.Tx) (model.APIKey, error) { return tx.GetAPIKeyByHash([]byte("other")) })
	})

	t.Run("tenant rows are read by id, only within their workspace", func(t *testing.T) {
		w := setup(t)
		other := model.Workspace{ID: ident.New("ws"), Name: "other", ResourceVersion: 1}
		theirs := model.Project{ID: ident.New("prj"), WorkspaceID: other.ID, Name: "default", ResourceVersion: 1}
		env := model.Environment{ID: ident.New("env"), WorkspaceID: other.ID, ProjectID: theirs.ID, Name: "production", ResourceVersion: 1}
		w.update(func(tx store.Tx) error {
			return errors.Join(tx.InsertWorkspace(other), tx.InsertProject(theirs), tx.InsertEnvironment(env))
		})
		var workspaces, projects, environments []string
		w.update(func(tx store.Tx) error {
			workspaces, projects, environments = nil, nil, nil
			ws, err := tx.GetWorkspaces([]string{other.ID, w.ws, "ws_none", w.ws})
			if err != nil {
				return err
			}
			for _, r := range ws {
				workspaces = append(workspaces, r.Name)
			}
			prj, err := tx.GetProjects(w.ws, []string{theirs.ID, w.prj, "prj_none", w.prj})
			if err != nil {
				return err
			}
			for _, r := range prj {
				projects = append(projects, r.ID)
			}
			envs, err := tx.GetEnvironments(w.ws, []string{env.ID, w.env, "env_none", w.env})
			for _, r := range envs {
				environments = append(environments, r.ID)
			}
			return err
		})
		require.ElementsMatch(t, []string{"other", "acme"}, workspaces)
		require.Equal(t, []string{w.prj}, projects)
		require.Equal(t, []string{w.env}, environments)
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Project, error) { return tx.GetProjects(w.ws, nil) }))
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Environment, error) { return tx.GetEnvironments(w.ws, nil) }))
		require.Empty(t, read(w, func(tx store.Tx) ([]model.Workspace, error) { return tx.GetWorkspaces(nil) }))
	})

	t.Run("a name that is taken is refused where it must be unique and free where not", func(t *testing.T) {
		w := setup(t)
		other := ident.New("ws")
		w.update(func(tx store.Tx) error {
			if err := tx.InsertWorkspace(model.Workspace{ID: other, Name: "other", ResourceVersion: 1}); err != nil {
				return err
			}
			if err := tx.InsertAPIKey(w.newKey("ci")); err != nil {
				return err
			}
			if err := tx.InsertProject(model.Project{ID: ident.New("prj"), WorkspaceID: other, Name: "default"}); err != nil {
				return err
			}
			if err := tx.InsertProject(model.Project{ID: "prj_2", WorkspaceID: w.ws, Name: "second"}); err != nil {
				return err
			}
			return tx.InsertEnvironment(model.Environment{ID: ident.New("env"), WorkspaceID: w.ws, ProjectID: "prj_2", Name: "production"})
		})
		for _, insert := range []func(store.Tx) error{
			func(tx store.Tx) error { return tx.InsertWorkspace(model.Workspace{ID: ident.New("ws"), Name: "acme"}) },
			func(tx store.Tx) error { return tx.InsertAPIKey(w.newKey("ci")) },
			func(tx store.Tx) error {
				return tx.InsertProject(model.Project{ID: ident.New("prj"), WorkspaceID: w.ws, Name: "default"})
			},
			func(tx store.Tx) error {
				return tx.InsertEnvironment(model.Environment{ID: ident.New("env"), WorkspaceID: w.ws, ProjectID: w.prj, Name: "production"})
			},
		} {
			w.requireFails(model.ErrExists, insert)
		}
		key := w.newKey("other")
		key.WorkspaceID = other
		w.update(func(tx store.Tx) error { return tx.InsertAPIKey(key) })
		again := w.newKey("third")
		again.Hash = key.Hash
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertAPIKey(again) })
	})

	t.Run("of many concurrent rows with one name, exactly one is stored", func(t *testing.T) {
		w := setup(t)
		oneWins(t, w.runUpdates(8, func(_ int, tx store.Tx) error {
			return tx.InsertProject(model.Project{ID: ident.New("prj"), WorkspaceID: w.ws, Name: "new", ResourceVersion: 1})
		}), model.ErrExists)
		require.Len(t, read(w, func(tx store.Tx) ([]model.Project, error) { return tx.ListProjects(w.ws, store.Page{Limit: 9}) }), 2)
	})

	t.Run("an update compares the resource version and counts it up", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		for _, c := range []struct {
			kind    string
			update  func(tx store.Tx, version int64) error
			version func(store.Tx) (int64, error)
		}{
			{
				"workspace", func(tx store.Tx, v int64) error {
					return tx.UpdateWorkspace(model.Workspace{ID: w.ws, Name: fmt.Sprintf("acme-%d", v), ResourceVersion: v})
				},
				func(tx store.Tx) (int64, error) { r, err := tx.GetWorkspace(w.ws); return r.ResourceVersion, err },
			},
			{
				"project", func(tx store.Tx, v int64) error {
					return tx.UpdateProject(model.Project{ID: w.prj, WorkspaceID: w.ws, Name: "renamed", ResourceVersion: v})
				},
				func(tx store.Tx) (int64, error) { r, err := tx.GetProject(w.ws, w.prj); return r.ResourceVersion, err },
			},
			{
				"environment", func(tx store.Tx, v int64) error {
					return tx.UpdateEnvironment(model.Environment{ID: w.env, WorkspaceID: w.ws, ProjectID: w.prj, Name: "staging", ResourceVersion: v})
				},
				func(tx store.Tx) (int64, error) {
					r, err := tx.GetEnvironment(w.ws, w.env)
					return r.ResourceVersion, err
				},
			},
			{
				"app", func(tx store.Tx, v int64) error {
					a := app
					a.ResourceVersion = v
					return tx.UpdateApp(a)
				},
				func(tx store.Tx) (int64, error) { r, err := tx.GetApp(w.ws, app.ID); return r.ResourceVersion, err },
			},
			{
				"region", func(tx store.Tx, v int64) error { return tx.UpdateRegion(model.Region{ID: region, ResourceVersion: v}) },
				func(tx store.Tx) (int64, error) { r, err := tx.GetRegion(region); return r.ResourceVersion, err },
			},
		} {
			require.EqualValues(t, 1, read(w, c.version), c.kind)
			oneWins(t, w.runUpdates(6, func(_ int, tx store.Tx) error { return c.update(tx, 1) }), model.ErrConflict)
			require.EqualValues(t, 2, read(w, c.version), c.kind)
			w.requireFails(model.ErrConflict, func(tx store.Tx) error { return c.update(tx, 1) })
			w.requireFails(model.ErrConflict, func(tx store.Tx) error { return c.update(tx, 3) })
			w.update(func(tx store.Tx) error { return c.update(tx, 2) })
			require.EqualValues(t, 3, read(w, c.version), c.kind)
		}
		for _, f := range []func(store.Tx) error{
			func(tx store.Tx) error {
				return tx.UpdateWorkspace(model.Workspace{ID: "ws_x", Name: "x", ResourceVersion: 1})
			},
			func(tx store.Tx) error {
				return tx.UpdateProject(model.Project{ID: "prj_x", WorkspaceID: w.ws, Name: "x", ResourceVersion: 1})
			},
			func(tx store.Tx) error {
				return tx.UpdateEnvironment(model.Environment{ID: "env_x", WorkspaceID: w.ws, Name: "x", ResourceVersion: 1})
			},
			func(tx store.Tx) error {
				return tx.UpdateApp(model.App{ID: "app_x", WorkspaceID: w.ws, ResourceVersion: 1})
			},
			func(tx store.Tx) error { return tx.UpdateRegion(model.Region{ID: "reg_x", ResourceVersion: 1}) },
			func(tx store.Tx) error { return tx.UpdateDeployment(model.Deployment{ID: "dep_x", WorkspaceID: w.ws}) },
			func(tx store.Tx) error { return tx.UpdateRollout(model.Rollout{ID: "rol_x", WorkspaceID: w.ws}) },
		} {
			w.requireFails(model.ErrNotFound, f)
		}
	})

	t.Run("updates change only the fields that may change", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error {
			if err := tx.UpdateWorkspace(model.Workspace{ID: w.ws, Name: "renamed", UpdatedAt: now + 1, ResourceVersion: 1}); err != nil {
				return err
			}
			return tx.UpdateProject(model.Project{ID: w.prj, WorkspaceID: w.ws, Name: "renamed", UpdatedAt: now + 1, ResourceVersion: 1})
		})
		require.Equal(t, model.Workspace{ID: w.ws, Name: "renamed", CreatedAt: now, UpdatedAt: now + 1, ResourceVersion: 2},
			read(w, func(tx store.Tx) (model.Workspace, error) { return tx.GetWorkspaceByName("renamed") }))
		require.Equal(t, model.Project{ID: w.prj, WorkspaceID: w.ws, Name: "renamed", CreatedAt: now, UpdatedAt: now + 1, ResourceVersion: 2},
			read(w, func(tx store.Tx) (model.Project, error) { return tx.GetProjectByName(w.ws, "renamed") }))
		requireMissing(w, func(tx store.Tx) (model.Workspace, error) { return tx.GetWorkspaceByName("acme") })
	})

	t.Run("renaming to a name that is taken is refused", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error {
			return tx.InsertProject(model.Project{ID: "prj_2", WorkspaceID: w.ws, Name: "second", ResourceVersion: 1})
		})
		w.requireFails(model.ErrExists, func(tx store.Tx) error {
			return tx.UpdateProject(model.Project{ID: "prj_2", WorkspaceID: w.ws, Name: "default", ResourceVersion: 1})
		})
	})

	t.Run("the first revocation of a key stands", func(t *testing.T) {
		w := setup(t)
		key := w.newKey("ci")
		w.update(func(tx store.Tx) error { return tx.InsertAPIKey(key) })
		w.update(func(tx store.Tx) error { return tx.RevokeAPIKey(w.ws, key.ID, now+1) })
		w.update(func(tx store.Tx) error { return tx.RevokeAPIKey(w.ws, key.ID, now+2) })
		require.Equal(t, now+1, read(w, func(tx store.Tx) (model.APIKey, error) { return tx.GetAPIKeyByHash(key.Hash) }).RevokedAt)
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.RevokeAPIKey(w.ws, "key_x", now) })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.RevokeAPIKey("ws_x", key.ID, now) })
	})

	t.Run("a deleted row is gone with all rows that belong to it, and its name is free", func(t *testing.T) {
		w := setup(t)
		key := w.newKey("ci")
		w.update(func(tx store.Tx) error {
			if err := tx.InsertAPIKey(key); err != nil {
				return err
			}
			return tx.InsertSecretVersion(w.newSecret("token", 1))
		})
		for _, again := range []bool{false, true} {
			del := func(f func(store.Tx) error) {
				if again {
					w.requireFails(model.ErrNotFound, f)
				} else {
					w.update(f)
				}
			}
			del(func(tx store.Tx) error { return tx.DeleteEnvironment(w.ws, w.env) })
			del(func(tx store.Tx) error { return tx.DeleteProject(w.ws, w.prj) })
			del(func(tx store.Tx) error { return tx.DeleteWorkspace(w.ws) })
		}
		requireMissing(w, func(tx store.Tx) (model.Environment, error) { return tx.GetEnvironment(w.ws, w.env) })
		requireMissing(w, func(tx store.Tx) (model.Project, error) { return tx.GetProject(w.ws, w.prj) })
		requireMissing(w, func(tx store.Tx) (model.Workspace, error) { return tx.GetWorkspace(w.ws) })
		requireMissing(w, func(tx store.Tx) (model.APIKey, error) { return tx.GetAPIKeyByHash(key.Hash) })
		requireMissing(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecret(w.ws, w.env, "token") })
		requireMissing(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecretVersion(w.ws, w.env, "token", 1) })
		w.update(func(tx store.Tx) error {
			return tx.InsertWorkspace(model.Workspace{ID: ident.New("ws"), Name: "acme", ResourceVersion: 1})
		})
	})

	t.Run("another workspace's id finds nothing and changes nothing", func(t *testing.T) {
		w := setup(t)
		region, app := w.newRegion("eu"), w.insertApp("chat")
		d := w.insertDeployment(app, 1)
		key, rol := w.newKey("ci"), model.Rollout{ID: "rol_1", WorkspaceID: w.ws, AppID: app.ID, DeploymentID: d.ID}
		w.update(func(tx store.Tx) error {
			require.NoError(t, tx.InsertAPIKey(key))
			require.NoError(t, tx.InsertSecretVersion(w.newSecret("token", 1)))
			require.NoError(t, tx.InsertRollout(rol))
			require.NoError(t, tx.PutTopology([]model.Topology{newTopology(d, region, 1)}))
			require.NoError(t, tx.PutInstances([]model.Instance{newInstance(d, region, "ins_1", 1)}))
			require.NoError(t, tx.InsertHistory([]model.History{{ID: "his_1", WorkspaceID: w.ws, AppID: app.ID}}))
			require.NoError(t, tx.InsertAudit(model.Audit{ID: "aud_1", WorkspaceID: w.ws}))
			return tx.InsertIdempotency(model.Idempotency{WorkspaceID: w.ws, Key: "k", RequestHash: []byte{1}, Response: []byte{1}})
		})
		const thief = "ws_thief"
		all := store.Page{Limit: 100}
		w.update(func(tx store.Tx) error {
			return tx.InsertWorkspace(model.Workspace{ID: thief, Name: "thief", ResourceVersion: 1})
		})
		for name, get := range map[string]func(store.Tx) error{
			"key":                   func(tx store.Tx) error { _, err := tx.GetAPIKey(thief, key.ID); return err },
			"revoke key":            func(tx store.Tx) error { return tx.RevokeAPIKey(thief, key.ID, now) },
			"project":               func(tx store.Tx) error { _, err := tx.GetProject(thief, w.prj); return err },
			"project by name":       func(tx store.Tx) error { _, err := tx.GetProjectByName(thief, "default"); return err },
			"delete project":        func(tx store.Tx) error { return tx.DeleteProject(thief, w.prj) },
			"environment":           func(tx store.Tx) error { _, err := tx.GetEnvironment(thief, w.env); return err },
			"environment by name":   func(tx store.Tx) error { _, err := tx.GetEnvironmentByName(thief, w.prj, "production"); return err },
			"lock environment":      func(tx store.Tx) error { _, err := tx.LockEnvironment(thief, w.env); return err },
			"delete environment":    func(tx store.Tx) error { return tx.DeleteEnvironment(thief, w.env) },
			"secret":                func(tx store.Tx) error { _, err := tx.GetSecret(thief, w.env, "token"); return err },
			"secret version":        func(tx store.Tx) error { _, err := tx.GetSecretVersion(thief, w.env, "token", 1); return err },
			"delete secret":         func(tx store.Tx) error { return tx.DeleteSecret(thief, w.env, "token") },
			"app":                   func(tx store.Tx) error { _, err := tx.GetApp(thief, app.ID); return err },
			"app by name":           func(tx store.Tx) error { _, err := tx.GetAppByName(thief, w.env, "chat"); return err },
			"lock app":              func(tx store.Tx) error { _, err := tx.LockApp(thief, app.ID); return err },
			"update app":            func(tx store.Tx) error { a := app; a.WorkspaceID = thief; return tx.UpdateApp(a) },
			"deployment":            func(tx store.Tx) error { _, err := tx.GetDeployment(thief, d.ID); return err },
			"deployment by version": func(tx store.Tx) error { _, err := tx.GetDeploymentByVersion(thief, app.ID, 1); return err },
			"update deployment":     func(tx store.Tx) error { x := d; x.WorkspaceID = thief; return tx.UpdateDeployment(x) },
			"rollout":               func(tx store.Tx) error { _, err := tx.GetRollout(thief, rol.ID); return err },
			"update rollout":        func(tx store.Tx) error { r := rol; r.WorkspaceID = thief; return tx.UpdateRollout(r) },
			"instance":              func(tx store.Tx) error { _, err := tx.GetInstance(thief, "ins_1"); return err },
			"region by name":        func(tx store.Tx) error { _, err := tx.GetRegionByName(thief, "eu"); return err },
			"idempotency":           func(tx store.Tx) error { _, err := tx.GetIdempotency(thief, "k"); return err },
			"update project": func(tx store.Tx) error {
				return tx.UpdateProject(model.Project{ID: w.prj, WorkspaceID: thief, Name: "mine", ResourceVersion: 1})
			},
			"update environment": func(tx store.Tx) error {
				return tx.UpdateEnvironment(model.Environment{ID: w.env, WorkspaceID: thief, Name: "mine", ResourceVersion: 1})
			},
		} {
			require.ErrorIs(t, w.s.Update(t.Context(), get), model.ErrNotFound, name)
		}
		w.requireFails(model.ErrConflict, func(tx store.Tx) error {
			s := w.newSecret("token", 2)
			s.WorkspaceID = thief
			return tx.InsertSecretVersion(s)
		})
		for name, list := range map[string]func(store.Tx) (int, error){
			"keys":             func(tx store.Tx) (int, error) { r, err := tx.ListAPIKeys(thief, all); return len(r), err },
			"projects":         func(tx store.Tx) (int, error) { r, err := tx.ListProjects(thief, all); return len(r), err },
			"environments":     func(tx store.Tx) (int, error) { r, err := tx.ListEnvironments(thief, w.prj, all); return len(r), err },
			"secrets":          func(tx store.Tx) (int, error) { r, err := tx.ListSecrets(thief, w.env, all); return len(r), err },
			"apps":             func(tx store.Tx) (int, error) { r, err := tx.ListApps(thief, "", all); return len(r), err },
			"apps of env":      func(tx store.Tx) (int, error) { r, err := tx.ListApps(thief, w.env, all); return len(r), err },
			"count apps":       func(tx store.Tx) (int, error) { return tx.CountApps(thief, "", w.env) },
			"count of project": func(tx store.Tx) (int, error) { return tx.CountApps(thief, w.prj, "") },
			"deployments":      func(tx store.Tx) (int, error) { r, err := tx.ListDeployments(thief, "", all); return len(r), err },
			"of app":           func(tx store.Tx) (int, error) { r, err := tx.ListDeployments(thief, app.ID, all); return len(r), err },
			"rollouts":         func(tx store.Tx) (int, error) { r, err := tx.ListRollouts(thief, app.ID, all); return len(r), err },
			"regions":          func(tx store.Tx) (int, error) { r, err := tx.ListRegions(thief, all); return len(r), err },
			"history":          func(tx store.Tx) (int, error) { r, err := tx.ListHistory(thief, app.ID, all); return len(r), err },
			"audit":            func(tx store.Tx) (int, error) { r, err := tx.ListAudit(thief, all); return len(r), err },
			"instances": func(tx store.Tx) (int, error) {
				r, err := tx.ListInstances(store.InstanceFilter{WorkspaceID: thief, AppID: app.ID, IncludeTerminated: true}, all)
				return len(r), err
			},
		} {
			require.Zero(t, read(w, list), name)
		}
		// Nothing above changed what is there.
		require.Equal(t, app, read(w, func(tx store.Tx) (model.App, error) { return tx.GetApp(w.ws, app.ID) }))
		requireSame(t, d, read(w, func(tx store.Tx) (model.Deployment, error) { return tx.GetDeployment(w.ws, d.ID) }))
		require.EqualValues(t, 1, read(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecret(w.ws, w.env, "token") }).Version)
		require.Equal(t, "production", read(w, func(tx store.Tx) (model.Environment, error) { return tx.GetEnvironment(w.ws, w.env) }).Name)
	})
}

func (w *fixture) newSecret(name string, version int32) model.Secret {
	return model.Secret{
		WorkspaceID: w.ws, EnvironmentID: w.env, Name: name, Version: version,
		Ciphertext: []byte(fmt.Sprintf("%s-%d\x00", name, version)), CreatedAt: now, UpdatedAt: now + int64(version),
	}
}

func testSecrets(t *testing.T, setup setup) {
	t.Run("versions count up by one and older ones stay readable", func(t *testing.T) {
		w := setup(t)
		for v := int32(1); v <= 3; v++ {
			w.update(func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret("token", v)) })
		}
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret("token", 3)) })
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret("token", 5)) })
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret("new", 2)) })
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret("token", 1)) })
		require.Equal(t, w.newSecret("token", 3), read(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecret(w.ws, w.env, "token") }))
		for v := int32(1); v <= 3; v++ {
			require.Equal(t, w.newSecret("token", v), read(w, func(tx store.Tx) (model.Secret, error) {
				return tx.GetSecretVersion(w.ws, w.env, "token", v)
			}))
		}
		requireMissing(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecretVersion(w.ws, w.env, "token", 4) })
		requireMissing(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecret(w.ws, w.env, "other") })
	})

	t.Run("a list has the latest version and no ciphertext", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error {
			require.NoError(t, tx.InsertSecretVersion(w.newSecret("b", 1)))
			require.NoError(t, tx.InsertSecretVersion(w.newSecret("a", 1)))
			return tx.InsertSecretVersion(w.newSecret("b", 2))
		})
		a, b := w.newSecret("a", 1), w.newSecret("b", 2)
		a.Ciphertext, b.Ciphertext = nil, nil
		require.Equal(t, []model.Secret{a, b}, read(w, func(tx store.Tx) ([]model.Secret, error) {
			return tx.ListSecrets(w.ws, w.env, store.Page{Limit: 9})
		}))
	})

	t.Run("versions are returned for the names that exist", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error {
			require.NoError(t, tx.InsertSecretVersion(w.newSecret("a", 1)))
			require.NoError(t, tx.InsertSecretVersion(w.newSecret("b", 1)))
			return tx.InsertSecretVersion(w.newSecret("b", 2))
		})
		require.Equal(t, map[string]int32{"a": 1, "b": 2}, read(w, func(tx store.Tx) (map[string]int32, error) {
			return tx.SecretVersions(w.env, []string{"b", "missing", "a", "b"})
		}))
		require.Empty(t, read(w, func(tx store.Tx) (map[string]int32, error) { return tx.SecretVersions(w.env, nil) }))
		require.Empty(t, read(w, func(tx store.Tx) (map[string]int32, error) { return tx.SecretVersions("env_x", []string{"a"}) }))
	})

	t.Run("a name never has a version twice", func(t *testing.T) {
		w := setup(t)
		floor := func() int32 {
			return read(w, func(tx store.Tx) (int32, error) { return tx.SecretFloor(w.env) })
		}
		insert := func(name string, version int32) {
			t.Helper()
			w.update(func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret(name, version)) })
		}
		remove := func(name string) {
			w.update(func(tx store.Tx) error { return tx.DeleteSecret(w.ws, w.env, name) })
		}
		require.Zero(t, floor())
		for v := int32(1); v <= 3; v++ {
			insert("token", v)
		}
		insert("short", 1)
		remove("token")
		require.EqualValues(t, 3, floor())
		remove("short")
		require.EqualValues(t, 3, floor(), "a lower version does not lower the floor")
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret("token", 1)) })
		w.requireFails(model.ErrConflict, func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret("token", 3)) })
		insert("token", 4)
		insert("token", 5)
		w.requireFails(model.ErrExists, func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret("token", 4)) })
		requireMissing(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecretVersion(w.ws, w.env, "token", 3) })
		insert("new", 4)
		remove("token")
		require.EqualValues(t, 5, floor())
		w.update(func(tx store.Tx) error { return tx.DeleteEnvironment(w.ws, w.env) })
		require.Zero(t, floor(), "an environment's id never comes again")
	})

	t.Run("a deleted secret is gone with its versions", func(t *testing.T) {
		w := setup(t)
		w.update(func(tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret("token", 1)) })
		w.update(func(tx store.Tx) error { return tx.DeleteSecret(w.ws, w.env, "token") })
		w.requireFails(model.ErrNotFound, func(tx store.Tx) error { return tx.DeleteSecret(w.ws, w.env, "token") })
		requireMissing(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecretVersion(w.ws, w.env, "token", 1) })
	})

	t.Run("concurrent writers under the environment's lock lose no version", func(t *testing.T) {
		w := setup(t)
		const writers = 10
		for _, err := range w.runUpdates(writers, func(i int, tx store.Tx) error {
			if _, err := tx.LockEnvironment(w.ws, w.env); err != nil {
				return err
			}
			latest, err := tx.SecretVersions(w.env, []string{"token"})
			if err != nil {
				return err
			}
			s := w.newSecret("token", latest["token"]+1)
			s.Ciphertext = []byte{byte(i)}
			return tx.InsertSecretVersion(s)
		}) {
			require.NoError(t, err)
		}
		require.EqualValues(t, writers, read(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecret(w.ws, w.env, "token") }).Version)
		stored := map[byte]bool{}
		for v := int32(1); v <= writers; v++ {
			s := read(w, func(tx store.Tx) (model.Secret, error) { return tx.GetSecretVersion(w.ws, w.env, "token", v) })
			stored[s.Ciphertext[0]] = true
		}
		require.Len(t, stored, writers)
	})

	t.Run("of many that write one version without a lock, exactly one succeeds", func(t *testing.T) {
		w := setup(t)
		for v := int32(1); v <= 2; v++ {
			oneWins(t, w.runUpdates(8, func(_ int, tx store.Tx) error { return tx.InsertSecretVersion(w.newSecret("token", v)) }),
				model.ErrExists, model.ErrConflict)
		}
	})
}
