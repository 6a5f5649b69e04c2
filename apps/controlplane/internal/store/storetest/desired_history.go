package storetest

import (
	"fmt"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/pkg/ident"
)

// agent holds what was sent to an agent: a snapshot, then the newest state of every key that changed.
type agent struct {
	w      *fixture
	region string
	head   model.Head
	inbox  map[string]any
}

func newAgent(t *rapid.T, w *fixture, region string) *agent {
	a := &agent{w: w, region: region, inbox: map[string]any{}}
	require.NoError(t, w.s.Snapshot(w.t.Context(), func(tx store.Tx) (err error) {
		if a.head, err = tx.GetHead(region); err != nil {
			return err
		}
		return tx.EachDesired(region, rapid.IntRange(1, 3).Draw(t, "page"), func(page []model.DesiredItem) error {
			for _, it := range page {
				a.inbox[itemKey(it.Kind, it.Key)] = plainItem(it)
			}
			return nil
		})
	}))
	return a
}

func itemKey(kind model.ChangeKind, key string) string { return fmt.Sprintf("%d/%s", kind, key) }

// followFeed reads the next changes, and then the state of their keys, as a stream does. The two reads
// are of different moments. followFeed reports whether there were changes.
func (a *agent) followFeed(t *rapid.T, limit int) bool {
	changes := read(a.w, func(tx store.Tx) ([]model.Change, error) {
		return tx.Changes(map[string]int64{a.region: a.head.Revision}, limit)
	})
	keys := map[model.ChangeKind][]string{}
	for _, c := range changes {
		require.Equal(t, a.head.Revision+1, c.Revision)
		a.head.Revision, a.head.Chain = c.Revision, c.Chain
		keys[c.Kind] = append(keys[c.Kind], c.Key)
	}
	for kind, of := range keys {
		items := read(a.w, func(tx store.Tx) ([]model.DesiredItem, error) {
			return tx.DesiredItems(kind, map[string][]string{a.region: of})
		})
		for _, key := range of {
			delete(a.inbox, itemKey(kind, key))
		}
		for _, it := range items {
			a.inbox[itemKey(kind, it.Key)] = plainItem(it)
		}
	}
	return len(changes) > 0
}

// past is a random history of a few apps in two regions that no other test uses.
type past struct {
	w       *fixture
	env     string
	regions []string
	apps    []model.App
	rows    map[[2]string]model.Topology
	version int32
	secret  int32
	moment  int64
}

func newHistory(t *rapid.T, w *fixture) *past {
	h := &past{
		w: w, env: ident.New("env"), rows: map[[2]string]model.Topology{}, moment: now,
	}
	require.NoError(t, w.s.Update(w.t.Context(), func(tx store.Tx) error {
		for i := range 2 {
			id := ident.New("reg")
			h.regions = append(h.regions[:i:i], id)
			if err := tx.InsertRegion(model.Region{ID: id, Name: id, ResourceVersion: 1}); err != nil {
				return err
			}
			app := w.newApp(fmt.Sprintf("app-%d", i))
			app.EnvironmentID = h.env
			h.apps = append(h.apps[:i:i], app)
			if err := tx.InsertApp(app); err != nil {
				return err
			}
		}
		return nil
	}))
	return h
}

// runStep is one transaction of a random kind: its writes, and the changes that announce them.
func (h *past) runStep(t *rapid.T) {
	h.moment++
	region := rapid.SampledFrom(h.regions).Draw(t, "region")
	app := rapid.SampledFrom(h.apps).Draw(t, "app")
	var op func(store.Tx) error
	switch rapid.SampledFrom([]string{"deploy", "scale", "stop", "weigh", "route", "secret", "quarantine", "both regions", "forget"}).Draw(t, "op") {
	case "deploy":
		op = h.deployVersion(app, region)
	case "both regions":
		a, b := h.deployVersion(app, h.regions[0]), h.deployVersion(app, h.regions[1])
		op = func(tx store.Tx) error {
			if err := a(tx); err != nil {
				return err
			}
			return b(tx)
		}
	case "scale":
		op = h.moveRow(t, func(r *model.Topology) { r.Replicas++ })
	case "stop":
		op = h.moveRow(t, func(r *model.Topology) { r.Status, r.Weight = stopped, 0 })
	case "weigh":
		op = h.moveRow(t, func(r *model.Topology) { r.Weight = (r.Weight + 30) % 100 })
	case "route":
		op = func(tx store.Tx) error { return h.writeRoute(tx, app, region) }
	case "secret":
		op = h.rotateSecret()
	case "quarantine":
		key := ident.New("dep")
		op = func(tx store.Tx) error {
			rows, err := tx.ListQuarantine(region, store.Page{Limit: 100})
			if err != nil {
				return err
			}
			if err := tx.SetQuarantine(region, append(rows, model.Quarantined{Key: key, Generation: 2, Since: h.moment})); err != nil {
				return err
			}
			if _, err := tx.ApproveQuarantine(region, []string{key}, h.moment); err != nil {
				return err
			}
			tx.Change(region, model.KindDeployment, key, 3)
			return nil
		}
	case "forget":
		// This deletes a tombstone. Agents keep it until they are told.
		op = h.forgetRows()
	}
	if op != nil {
		require.NoError(t, h.w.s.Update(h.w.t.Context(), op))
	}
}

func (h *past) forgetRows() func(store.Tx) error {
	var gone []model.Topology
	for key, r := range h.rows {
		if r.Status == stopped {
			gone = append(gone, r)
			delete(h.rows, key)
		}
	}
	return func(tx store.Tx) error {
		for _, r := range gone {
			tx.Change(r.RegionID, model.KindDeployment, r.DeploymentID, r.Generation)
		}
		_, err := tx.DeleteTopology(h.moment+1, 100)
		return err
	}
}

func (h *past) deployVersion(app model.App, region string) func(store.Tx) error {
	h.version++
	d := h.w.newDeployment(app, h.version, "token")
	r := newTopology(d, region, 1)
	r.UpdatedAt = h.moment
	h.rows[[2]string{d.ID, region}] = r
	return func(tx store.Tx) error {
		if err := tx.InsertDeployment(d); err != nil {
			return err
		}
		tx.Change(region, model.KindDeployment, d.ID, 1)
		return tx.PutTopology([]model.Topology{r})
	}
}

// moveRow changes a row, and the route of its app with it, because the rows have the weights.
func (h *past) moveRow(t *rapid.T, change func(*model.Topology)) func(store.Tx) error {
	if len(h.rows) == 0 {
		return nil
	}
	keys := slices.SortedFunc(maps.Keys(h.rows), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	key := rapid.SampledFrom(keys).Draw(t, "row")
	r := h.rows[key]
	change(&r)
	r.Generation++
	r.UpdatedAt = h.moment
	h.rows[key] = r
	app := model.App{ID: r.AppID, WorkspaceID: r.WorkspaceID}
	return func(tx store.Tx) error {
		tx.Change(r.RegionID, model.KindDeployment, r.DeploymentID, r.Generation)
		if err := tx.PutTopology([]model.Topology{r}); err != nil {
			return err
		}
		return h.writeRoute(tx, app, r.RegionID)
	}
}

func (h *past) writeRoute(tx store.Tx, app model.App, region string) error {
	generation := h.moment
	tx.Change(region, model.KindRoutes, app.ID, generation)
	return tx.PutRoutes([]model.Route{{
		WorkspaceID: app.WorkspaceID, AppID: app.ID, RegionID: region,
		Hosts: []string{fmt.Sprintf("h%d.example", generation)}, Generation: generation, UpdatedAt: h.moment,
	}})
}

// rotateSecret writes a secret's next version and moves all rows that refer to it.
func (h *past) rotateSecret() func(store.Tx) error {
	h.secret++
	version := h.secret
	var rows []model.Topology
	for key, r := range h.rows {
		if r.Status != stopped {
			r.Generation++
			r.UpdatedAt = h.moment
			h.rows[key] = r
			rows = append(rows, r)
		}
	}
	return func(tx store.Tx) error {
		s := h.w.newSecret("token", version)
		s.EnvironmentID = h.env
		if err := tx.InsertSecretVersion(s); err != nil {
			return err
		}
		for _, r := range rows {
			tx.Change(r.RegionID, model.KindDeployment, r.DeploymentID, r.Generation)
		}
		return tx.PutTopology(rows)
	}
}
