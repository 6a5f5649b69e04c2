package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
)

// listed is a list in pages: how to add a row whose sort key begins with the
// text, and how to read the page after a cursor as cursors.
type listed struct {
	name string
	desc bool
	add  func(w *fixture, key string) (cursor string)
	page func(w *fixture, p store.Page) []string
}

func checkCursors[V any](w *fixture, list func(store.Tx) ([]V, error), cursor func(V) string) []string {
	var out []string
	for _, v := range read(w, list) {
		out = append(out, cursor(v))
	}
	return out
}

func allLists() []listed {
	add := func(insert func(w *fixture, tx store.Tx, key string) error) func(*fixture, string) string {
		return func(w *fixture, key string) string {
			w.update(func(tx store.Tx) error { return insert(w, tx, key) })
			return key
		}
	}
	return []listed{
		{
			"workspaces", false,
			add(func(_ *fixture, tx store.Tx, key string) error {
				return tx.InsertWorkspace(model.Workspace{ID: ident.New("ws"), Name: key})
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Workspace, error) { return tx.ListWorkspaces(p) }, func(r model.Workspace) string { return r.Name })
			},
		},
		{
			"API keys", false,
			add(func(w *fixture, tx store.Tx, key string) error { return tx.InsertAPIKey(w.newKey(key)) }),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.APIKey, error) { return tx.ListAPIKeys(w.ws, p) }, func(r model.APIKey) string { return r.Name })
			},
		},
		{
			"projects", false,
			add(func(w *fixture, tx store.Tx, key string) error {
				return tx.InsertProject(model.Project{ID: ident.New("prj"), WorkspaceID: w.ws, Name: key})
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Project, error) { return tx.ListProjects(w.ws, p) }, func(r model.Project) string { return r.Name })
			},
		},
		{
			"environments", false,
			add(func(w *fixture, tx store.Tx, key string) error {
				return tx.InsertEnvironment(model.Environment{ID: ident.New("env"), WorkspaceID: w.ws, ProjectID: w.prj, Name: key})
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Environment, error) { return tx.ListEnvironments(w.ws, w.prj, p) }, func(r model.Environment) string { return r.Name })
			},
		},
		{
			"secrets", false,
			add(func(w *fixture, tx store.Tx, key string) error { return tx.InsertSecretVersion(w.newSecret(key, 1)) }),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Secret, error) { return tx.ListSecrets(w.ws, w.env, p) }, func(r model.Secret) string { return r.Name })
			},
		},
		{
			"regions of a workspace", false,
			add(func(w *fixture, tx store.Tx, key string) error {
				r := model.Region{ID: ident.New("reg"), Name: key}
				if len(key)%2 == 0 {
					r.WorkspaceID = w.ws
					return tx.InsertRegion(r)
				}
				if err := tx.InsertRegion(r); err != nil {
					return err
				}
				return tx.GrantRegion(r.ID, w.ws, now)
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Region, error) { return tx.ListRegions(w.ws, p) }, func(r model.Region) string { return r.Name })
			},
		},
		{
			"all regions", false,
			add(func(_ *fixture, tx store.Tx, key string) error {
				return tx.InsertRegion(model.Region{ID: key, Name: key})
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Region, error) { return tx.AllRegions(p) }, func(r model.Region) string { return r.ID })
			},
		},
		{
			"gateways", false,
			add(func(w *fixture, tx store.Tx, key string) error {
				if err := tx.InsertRegion(model.Region{ID: key, WorkspaceID: w.ws, Name: key}); err != nil {
					return err
				}
				_, _, err := tx.StartSession(key, "session", hour, model.Region{GatewayURL: "https://gateway.test"})
				return err
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Region, error) { return tx.ListGateways(false, p) }, func(r model.Region) string { return r.ID })
			},
		},
		{
			"freezes", false,
			add(func(w *fixture, tx store.Tx, key string) error {
				return tx.PutFreeze(model.Freeze{ID: ident.New("frz"), WorkspaceID: w.ws, Name: key})
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Freeze, error) { return tx.ListFreezes(w.ws, p) }, func(f model.Freeze) string { return f.Name })
			},
		},
		{
			"heads", false,
			add(func(_ *fixture, tx store.Tx, key string) error {
				return tx.InsertRegion(model.Region{ID: key, Name: key})
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Head, error) { return tx.ListRegionHeads(p.After, p.Limit) }, func(r model.Head) string { return r.RegionID })
			},
		},
		{
			"instances", false,
			add(func(w *fixture, tx store.Tx, key string) error {
				return tx.PutInstances([]model.Instance{{ID: key, WorkspaceID: w.ws, RegionID: "reg_1", Guard: 1, Status: 1}})
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Instance, error) {
					return tx.ListInstances(store.InstanceFilter{WorkspaceID: w.ws}, p)
				}, func(r model.Instance) string { return r.ID })
			},
		},
		{
			"quarantine", false,
			func(w *fixture, key string) string {
				w.update(func(tx store.Tx) error {
					rows, err := tx.ListQuarantine("reg_1", store.Page{Limit: 1000})
					if err != nil {
						return err
					}
					return tx.SetQuarantine("reg_1", append(rows, model.Quarantined{RegionID: "reg_1", Key: key, Since: now}))
				})
				return key
			},
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Quarantined, error) { return tx.ListQuarantine("reg_1", p) }, func(r model.Quarantined) string { return r.Key })
			},
		},
		{
			"followed history", false,
			add(func(w *fixture, tx store.Tx, key string) error {
				return tx.InsertHistory([]model.History{{ID: key, WorkspaceID: w.ws, AppID: "app_1"}})
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.History, error) { return tx.HistorySince("app_1", p.After, p.Limit) }, func(r model.History) string { return r.ID })
			},
		},
		{
			"history", true,
			add(func(w *fixture, tx store.Tx, key string) error {
				return tx.InsertHistory([]model.History{{ID: key, WorkspaceID: w.ws, AppID: "app_1"}})
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.History, error) { return tx.ListHistory(w.ws, "app_1", p) }, func(r model.History) string { return r.ID })
			},
		},
		{
			"audit", true,
			add(func(w *fixture, tx store.Tx, key string) error {
				return tx.InsertAudit(model.Audit{ID: key, WorkspaceID: w.ws})
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Audit, error) { return tx.ListAudit(w.ws, p) }, func(r model.Audit) string { return r.ID })
			},
		},
		{
			"rollouts", true,
			add(func(w *fixture, tx store.Tx, key string) error {
				return tx.InsertRollout(model.Rollout{ID: key, WorkspaceID: w.ws, AppID: "app_1"})
			}),
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Rollout, error) { return tx.ListRollouts(w.ws, "app_1", p) }, func(r model.Rollout) string { return r.ID })
			},
		},
		{
			"deployments", true,
			func(w *fixture, key string) string {
				d := w.newDeployment(model.App{ID: "app_" + key, WorkspaceID: w.ws}, 1)
				d.ID = key
				w.update(func(tx store.Tx) error { return tx.InsertDeployment(d) })
				return key
			},
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.Deployment, error) { return tx.ListDeployments(w.ws, "", p) }, func(r model.Deployment) string { return r.ID })
			},
		},
		{
			// Names repeat: the environments differ.
			"apps", false,
			func(w *fixture, key string) string {
				a := w.newApp(key[:1])
				a.EnvironmentID = ident.New("env")
				w.update(func(tx store.Tx) error { return tx.InsertApp(a) })
				return a.Name + "\x00" + a.ID
			},
			func(w *fixture, p store.Page) []string {
				return checkCursors(w, func(tx store.Tx) ([]model.App, error) { return tx.ListApps(w.ws, "", p) }, func(r model.App) string { return r.Name + "\x00" + r.ID })
			},
		},
	}
}

func testPages(t *testing.T, setup setup) {
	for _, l := range allLists() {
		t.Run("walking "+l.name+" neither repeats nor skips a row while others are inserted", func(t *testing.T) {
			w := setup(t)
			n := 0
			// Keys are in no order, so that added rows fall before and after a cursor.
			next := func() string {
				n++
				return l.add(w, fmt.Sprintf("%c%03d%s", 'a'+rune(n*7%26), n, "xx"[:n%2]))
			}
			present := map[string]bool{}
			for range 9 {
				present[next()] = true
			}
			seen := map[string]bool{}
			last, after := "", ""
			for {
				rows := l.page(w, store.Page{After: after, Limit: 2})
				require.LessOrEqual(t, len(rows), 2)
				for _, c := range rows {
					require.False(t, seen[c], "%q again", c)
					seen[c] = true
					if last != "" {
						require.Equal(t, l.desc, c < last, "%q follows %q", c, last)
					}
					last = c
				}
				if len(rows) == 0 {
					break
				}
				after = rows[len(rows)-1]
				if len(seen) < 20 {
					next()
				}
			}
			for c := range present {
				require.True(t, seen[c], "%q was skipped", c)
			}
		})
	}

	t.Run("pages of any size put together are the whole list", func(t *testing.T) {
		w := setup(t)
		rapid.Check(t, func(t *rapid.T) {
			ws := ident.New("ws")
			names := rapid.SliceOfN(rapid.StringMatching(`[a-c]{1,3}(-[a-b0-1]){0,2}`), 1, 8).Draw(t, "names")
			require.NoError(t, w.s.Update(w.t.Context(), func(tx store.Tx) error {
				for _, name := range names {
					a := w.newApp(name)
					a.WorkspaceID, a.EnvironmentID = ws, ident.New("env")
					if err := tx.InsertApp(a); err != nil {
						return err
					}
				}
				return nil
			}))
			all := read(w, func(tx store.Tx) ([]model.App, error) { return tx.ListApps(ws, "", store.Page{Limit: 100}) })
			require.Len(t, all, len(names))
			size := rapid.IntRange(1, 4).Draw(t, "size")
			var walked []model.App
			for after := ""; ; {
				page := read(w, func(tx store.Tx) ([]model.App, error) {
					return tx.ListApps(ws, "", store.Page{After: after, Limit: size})
				})
				if len(page) == 0 {
					break
				}
				walked = append(walked, page...)
				require.LessOrEqual(t, len(walked), len(all))
				after = page[len(page)-1].Name + "\x00" + page[len(page)-1].ID
			}
			require.Equal(t, all, walked)
		})
	})
}
