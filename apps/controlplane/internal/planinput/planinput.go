// Package planinput reads plan.Input: everything that the plan of an app depends on. The stepper, which
// carries plans out, the preview, which forecasts them, and the views of apps read the same rows in the
// same way. The number of queries does not depend on the number of apps, regions or instances.
package planinput

import (
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Tx has the queries that read inputs. A caller that writes the decisions of a plan passes a Tx whose
// ListTopology locks the rows.
type Tx interface {
	ListTopology(appIDs []string) ([]model.Topology, error)
	ListRoutes(appIDs []string) ([]model.Route, error)
	ListObserved(appIDs []string) ([]model.Observed, error)
	ListRouteObserved(appIDs []string) ([]model.RouteObserved, error)
	GetActiveRollouts(rolloutIDs []string) ([]model.ActiveRollout, error)
	GetRollouts(ids []string) ([]model.Rollout, error)
	GetRolloutStates(appIDs []string) ([]model.RolloutState, error)
	ListPins(appIDs []string) ([]model.Pin, error)
	GetDeployments(ids []string) ([]model.Deployment, error)
	GetNewestDeployments(appIDs []string) ([]model.Deployment, error)
	DomainsOfApps(appIDs []string) ([]model.Domain, error)
	KeysOfApps(appIDs []string) ([]model.AppKey, error)
	ListFreezesFor(workspaceID, name string, appIDs ...string) ([]model.Freeze, error)
	GetRegions(ids []string) ([]model.Region, error)
	GetRegionsByName(workspaceID string, names []string) ([]model.Region, error)
}

// Load reads everything that the next step of each app depends on: what the app runs, and what regions
// report. The inputs are in the order of the apps. domain is the parent domain of the apps' hosts.
func Load(tx Tx, apps []model.App, domain string) ([]*plan.Input, error) {
	l := newLoader(tx, apps)
	for _, in := range l.order {
		in.Hosts = []string{model.Host(in.App, domain)}
	}
	return l.load(
		l.readTopology, l.readRoutes, l.readHosts, l.readKeys, l.readActiveRollouts, l.readPins, l.readDeployments, l.readNewest,
		l.readFreezes, l.readObserved, l.readRouteObserved, l.readRegions, l.readRegionNames,
	)
}

// Rows reads what apps run. It leaves out facts that a forecast assumes or ignores: the reports of regions,
// routes, hosts, keys and freezes.
func Rows(tx Tx, apps []model.App) ([]*plan.Input, error) {
	l := newLoader(tx, apps)
	return l.load(l.readTopology, l.readActiveRollouts, l.readPins, l.readDeployments, l.readNewest, l.readRegions, l.readRegionNames)
}

// loader fills inputs with rows.
type loader struct {
	tx Tx
	// of has the inputs by app id. order has the ids in the order of the apps.
	of    map[string]*plan.Input
	order []*plan.Input
	// regions has the regions read so far, by id.
	regions map[string]model.Region
	// deployments returns the ids of the deployments that an input names, as a set.
	deployments func(*plan.Input) map[string]bool
	// pastWaves means that the regions in the waves of an ended rollout are read, too.
	pastWaves bool
}

func newLoader(tx Tx, apps []model.App) *loader {
	l := &loader{tx: tx, of: map[string]*plan.Input{}, regions: map[string]model.Region{}, deployments: plannedDeployments}
	for _, app := range apps {
		in := &plan.Input{App: app}
		l.of[app.ID], l.order = in, append(l.order, in)
	}
	return l
}

func (l *loader) load(reads ...func() error) ([]*plan.Input, error) {
	if len(l.order) == 0 {
		return nil, nil
	}
	for _, read := range reads {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return l.order, nil
}

// selectedIDs returns the ids of the apps that are selected.
func (l *loader) selectedIDs(selected func(*plan.Input) bool) (ids []string) {
	for _, in := range l.order {
		if selected(in) {
			ids = append(ids, in.App.ID)
		}
	}
	return ids
}

// addRows reads the rows of the selected apps, and adds each row to its app's input. It sends no query if
// no app is selected.
func addRows[R any](l *loader, selected func(*plan.Input) bool, read func(appIDs []string) ([]R, error), add func(R)) error {
	ids := l.selectedIDs(selected)
	if len(ids) == 0 {
		return nil
	}
	rows, err := read(ids)
	if err != nil {
		return err
	}
	for _, r := range rows {
		add(r)
	}
	return nil
}

func (l *loader) readTopology() error {
	// The call names all apps, because a store that locks the rows must also know the apps that have no rows.
	rows, err := l.tx.ListTopology(sortedKeys(l.of))
	for _, t := range rows {
		l.of[t.AppID].Topology = append(l.of[t.AppID].Topology, t)
	}
	return err
}

// readRoutes leaves out apps before their first step: they have no routes yet.
func (l *loader) readRoutes() error {
	return addRows(l, func(in *plan.Input) bool { return in.App.Step > 0 }, l.tx.ListRoutes, func(r model.Route) {
		l.of[r.AppID].Routes = append(l.of[r.AppID].Routes, r)
	})
}

// readHosts reads the verified domains.
func (l *loader) readHosts() error {
	return addRows(l, func(in *plan.Input) bool { return in.App.Domains > 0 }, l.tx.DomainsOfApps, func(d model.Domain) {
		if in := l.of[d.AppID]; d.VerifiedAt != 0 {
			in.Hosts = append(in.Hosts, d.Name)
		}
	})
}

func (l *loader) readKeys() error {
	keys := map[string][]model.AppKey{}
	err := addRows(l, func(in *plan.Input) bool { return in.App.AppKeys > 0 }, l.tx.KeysOfApps, func(k model.AppKey) {
		keys[k.AppID] = append(keys[k.AppID], k)
	})
	for id, of := range keys {
		l.of[id].Keys = model.EncodeKeys(of)
	}
	return err
}

// readActiveRollouts reads rollouts with their deployments and rollout states, and then the rollout
// states of the other apps.
func (l *loader) readActiveRollouts() error {
	rollouts := l.rolloutInputs()
	stated := map[string]bool{}
	if len(rollouts) > 0 {
		active, err := l.tx.GetActiveRollouts(sortedKeys(rollouts))
		if err != nil {
			return err
		}
		for _, a := range active {
			in := rollouts[a.Rollout.ID]
			in.Rollout, in.Deployments, in.RolloutState = &a.Rollout, []model.Deployment{a.Deployment}, a.RolloutState
			stated[in.App.ID] = true
			delete(rollouts, a.Rollout.ID)
		}
	}
	// GetActiveRollouts leaves out a rollout whose deployment was deleted.
	if err := l.addRollouts(rollouts); err != nil {
		return err
	}
	return addRows(l, func(in *plan.Input) bool { return !stated[in.App.ID] }, l.tx.GetRolloutStates, l.addRolloutState)
}

// rolloutInputs returns the inputs of apps that name a rollout, by its id.
func (l *loader) rolloutInputs() map[string]*plan.Input {
	rollouts := map[string]*plan.Input{}
	for _, in := range l.order {
		if in.App.RolloutID != "" {
			rollouts[in.App.RolloutID] = in
		}
	}
	return rollouts
}

func (l *loader) addRollouts(of map[string]*plan.Input) error {
	if len(of) == 0 {
		return nil
	}
	found, err := l.tx.GetRollouts(sortedKeys(of))
	for _, r := range found {
		of[r.ID].Rollout = &r
	}
	return err
}

func (l *loader) addRolloutState(s model.RolloutState) { l.of[s.AppID].RolloutState = &s }

func (l *loader) readPins() error {
	// An app with a single version has no pins.
	return addRows(l, func(in *plan.Input) bool { return in.App.LatestVersion > 1 }, l.tx.ListPins, func(p model.Pin) {
		l.of[p.AppID].Pins = append(l.of[p.AppID].Pins, p)
	})
}

// readDeployments reads deployments that an input names but does not have.
func (l *loader) readDeployments() error {
	all := map[string]bool{}
	for _, in := range l.order {
		maps.Copy(all, l.missingDeployments(in))
	}
	if len(all) == 0 {
		return nil
	}
	found, err := l.tx.GetDeployments(sortedKeys(all))
	for _, d := range found {
		// Rows of an app do not name another app's deployment.
		if in := l.of[d.AppID]; in != nil {
			in.Deployments = append(in.Deployments, d)
		}
	}
	return err
}

// missingDeployments returns the ids of the deployments that the input names but does not have.
func (l *loader) missingDeployments(in *plan.Input) map[string]bool {
	want := l.deployments(in)
	delete(want, "")
	for _, d := range in.Deployments {
		delete(want, d.ID)
	}
	return want
}

// plannedDeployments returns the ids of the deployments that a plan decides about.
func plannedDeployments(in *plan.Input) map[string]bool {
	want := map[string]bool{in.App.LiveDeploymentID: true}
	if in.Rollout != nil {
		want[in.Rollout.DeploymentID] = true
	}
	for _, t := range in.Topology {
		if t.Status != windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPED {
			want[t.DeploymentID] = true
		}
	}
	for _, p := range in.Pins {
		want[p.DeploymentID] = true
	}
	return want
}

// readNewest adds the newest deployment of each app, unless the app's input has it.
func (l *loader) readNewest() error {
	missing := func(in *plan.Input) bool {
		return in.App.LatestVersion != 0 && !slices.ContainsFunc(in.Deployments, func(d model.Deployment) bool {
			return d.Version == in.App.LatestVersion
		})
	}
	return addRows(l, missing, l.tx.GetNewestDeployments, func(d model.Deployment) {
		// In a dry run, the app may have a version that is not stored.
		if in := l.of[d.AppID]; d.Version == in.App.LatestVersion {
			in.Deployments = append(in.Deployments, d)
		}
	})
}

// mayBeFrozen reports whether a freeze can hold the app's rollout. A freeze only holds a rollout that has not begun.
func mayBeFrozen(in *plan.Input) bool {
	return in.Rollout != nil && slices.ContainsFunc(in.Deployments, func(d model.Deployment) bool {
		return d.ID == in.Rollout.DeploymentID && plan.MayBeFrozen(*in.Rollout, d)
	})
}

func (l *loader) readFreezes() error {
	waiting := map[string][]*plan.Input{}
	for _, in := range l.order {
		if mayBeFrozen(in) {
			waiting[in.App.WorkspaceID] = append(waiting[in.App.WorkspaceID], in)
		}
	}
	for _, workspace := range sortedKeys(waiting) {
		var ids []string
		for _, in := range waiting[workspace] {
			ids = append(ids, in.App.ID)
		}
		freezes, err := l.tx.ListFreezesFor(workspace, "", ids...)
		if err != nil {
			return err
		}
		for _, in := range waiting[workspace] {
			for _, z := range freezes {
				if !z.FromFile || z.AppID == in.App.ID {
					in.Freezes = append(in.Freezes, z)
				}
			}
		}
	}
	return nil
}

// readObserved leaves out apps without topology, because no region reports on them.
func (l *loader) readObserved() error {
	return addRows(l, func(in *plan.Input) bool { return len(in.Topology) > 0 }, l.tx.ListObserved, func(o model.Observed) {
		l.of[o.AppID].Observed = append(l.of[o.AppID].Observed, o)
	})
}

func (l *loader) readRouteObserved() error {
	return addRows(l, func(in *plan.Input) bool { return len(in.Routes) > 0 }, l.tx.ListRouteObserved, func(o model.RouteObserved) {
		l.of[o.AppID].RouteObserved = append(l.of[o.AppID].RouteObserved, o)
	})
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
