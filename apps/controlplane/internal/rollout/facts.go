package rollout

import (
	"errors"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// facts are what is read of a group's apps, by id and in the order of the ids.
type facts struct {
	tx    Tx
	s     *Stepper
	of    map[string]*plan.Input
	order []*plan.Input
}

// ids of the apps that are which.
func (f *facts) ids(which func(*plan.Input) bool) (ids []string) {
	for _, in := range f.order {
		if which(in) {
			ids = append(ids, in.App.ID)
		}
	}
	return ids
}

// read gathers the facts of apps in a number of queries that depends on neither apps nor
// regions nor instances; apps that are gone it leaves out. The app's row is locked before
// its wake-up is taken away, as everyone does who changes an app and then wakes it; all that
// others wake it for is read after that.
func (s *Stepper) read(tx Tx, appIDs []string) (map[string]*plan.Input, error) {
	f := &facts{tx: tx, s: s, of: map[string]*plan.Input{}}
	apps, err := tx.LockApps(appIDs)
	if err != nil {
		return nil, err
	}
	if err := tx.ClearWakes(appIDs); err != nil {
		return nil, err
	}
	for _, app := range apps {
		if app.DeletedAt == 0 {
			in := &plan.Input{App: app, Hosts: []string{model.Host(app, s.cfg.Domain)}}
			f.of[app.ID], f.order = in, append(f.order, in)
		}
	}
	for _, read := range []func() error{
		f.readRows, f.readNames, f.readActiveRollouts, f.readPins, f.readDeployments, f.readFreezes, f.readObserved, f.readRegions,
	} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return f.of, nil
}

// stepped reports whether a step has ever been. Until one has, nothing is routed.
func stepped(in *plan.Input) bool { return in.App.Step > 0 }

func (f *facts) readRows() error {
	if len(f.of) == 0 {
		return nil
	}
	// Of those without rows the store is to know that, too.
	rows, err := f.tx.LockTopology(sortedKeys(f.of)...)
	if err != nil {
		return err
	}
	for _, t := range rows {
		f.of[t.AppID].Topology = append(f.of[t.AppID].Topology, t)
	}
	ids := f.ids(stepped)
	if len(ids) == 0 {
		return nil
	}
	routes, err := f.tx.ListRoutes(ids)
	if err != nil {
		return err
	}
	for _, r := range routes {
		f.of[r.AppID].Routes = append(f.of[r.AppID].Routes, r)
	}
	return nil
}

// readNames reads the hosts that apps have beside their own, and their keys.
func (f *facts) readNames() error {
	if ids := f.ids(func(in *plan.Input) bool { return in.App.Domains > 0 }); len(ids) > 0 {
		domains, err := f.tx.DomainsOfApps(ids)
		if err != nil {
			return err
		}
		for _, d := range domains {
			if in := f.of[d.AppID]; d.VerifiedAt != 0 {
				in.Hosts = append(in.Hosts, d.Name)
			}
		}
	}
	ids := f.ids(func(in *plan.Input) bool { return in.App.AppKeys > 0 })
	if len(ids) == 0 {
		return nil
	}
	keys, err := f.tx.KeysOfApps(ids)
	if err != nil {
		return err
	}
	each := map[string][]model.AppKey{}
	for _, k := range keys {
		each[k.AppID] = append(each[k.AppID], k)
	}
	for id, keys := range each {
		f.of[id].Keys = model.EncodeKeys(keys)
	}
	return nil
}

// readActiveRollouts reads the apps' rollouts and their deployments, where there are any, and
// their rollout state.
func (f *facts) readActiveRollouts() error {
	rollouts := map[string]*plan.Input{}
	for _, in := range f.order {
		if in.App.RolloutID != "" {
			rollouts[in.App.RolloutID] = in
		}
	}
	flown := map[string]bool{}
	if len(rollouts) > 0 {
		flights, err := f.tx.GetActiveRollouts(sortedKeys(rollouts))
		if err != nil {
			return err
		}
		for _, flight := range flights {
			in := rollouts[flight.Rollout.ID]
			in.Rollout, in.Deployments, in.RolloutState = &flight.Rollout, []model.Deployment{flight.Deployment}, flight.RolloutState
			flown[in.App.ID] = true
			delete(rollouts, flight.Rollout.ID)
		}
	}
	// A rollout whose deployment is forgotten is still one.
	if len(rollouts) > 0 {
		alone, err := f.tx.GetRollouts(sortedKeys(rollouts))
		if err != nil {
			return err
		}
		for _, r := range alone {
			rollouts[r.ID].Rollout = &r
		}
	}
	rest := f.ids(func(in *plan.Input) bool { return !flown[in.App.ID] })
	if len(rest) == 0 {
		return nil
	}
	rolloutStates, err := f.tx.GetRolloutStates(rest)
	for _, s := range rolloutStates {
		f.of[s.AppID].RolloutState = &s
	}
	return err
}

func (f *facts) readPins() error {
	// One version has nothing to be pinned beside.
	ids := f.ids(func(in *plan.Input) bool { return in.App.LatestVersion > 1 })
	if len(ids) == 0 {
		return nil
	}
	pins, err := f.tx.ListPins(ids)
	for _, p := range pins {
		f.of[p.AppID].Pins = append(f.of[p.AppID].Pins, p)
	}
	return err
}

// readDeployments adds those that the plan speaks of, and the newest one, to what was
// read already.
func (f *facts) readDeployments() error {
	all := map[string]bool{}
	for _, in := range f.order {
		for id := range deploymentsOf(in) {
			all[id] = true
		}
	}
	if len(all) > 0 {
		found, err := f.tx.GetDeployments(sortedKeys(all))
		if err != nil {
			return err
		}
		for _, d := range found {
			// Of another app's nothing speaks.
			if in := f.of[d.AppID]; in != nil {
				in.Deployments = append(in.Deployments, d)
			}
		}
	}
	for _, in := range f.order {
		if in.App.LatestVersion == 0 || slices.ContainsFunc(in.Deployments, func(d model.Deployment) bool {
			return d.Version == in.App.LatestVersion
		}) {
			continue
		}
		newest, err := f.tx.GetDeploymentByVersion(in.App.WorkspaceID, in.App.ID, in.App.LatestVersion)
		if err == nil {
			in.Deployments = append(in.Deployments, newest)
		} else if !errors.Is(err, model.ErrNotFound) {
			return err
		}
	}
	return nil
}

// deploymentsOf are those that the plan speaks of and that were not read yet.
func deploymentsOf(in *plan.Input) map[string]bool {
	want := map[string]bool{}
	if in.App.LiveDeploymentID != "" {
		want[in.App.LiveDeploymentID] = true
	}
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
	for _, d := range in.Deployments {
		delete(want, d.ID)
	}
	return want
}

// mayBeFrozen: once a rollout has begun, and while there is none, no freeze matters.
func mayBeFrozen(in *plan.Input) bool {
	return in.Rollout != nil && slices.ContainsFunc(in.Deployments, func(d model.Deployment) bool {
		return d.ID == in.Rollout.DeploymentID && plan.MayBeFrozen(*in.Rollout, d)
	})
}

func (f *facts) readFreezes() error {
	waiting := map[string][]*plan.Input{}
	for _, in := range f.order {
		if mayBeFrozen(in) {
			waiting[in.App.WorkspaceID] = append(waiting[in.App.WorkspaceID], in)
		}
	}
	for _, workspace := range sortedKeys(waiting) {
		var ids []string
		for _, in := range waiting[workspace] {
			ids = append(ids, in.App.ID)
		}
		freezes, err := f.tx.ListFreezesFor(workspace, "", ids...)
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

// readObserved reads what regions say, of those that were ever told anything.
func (f *facts) readObserved() error {
	if ids := f.ids(func(in *plan.Input) bool { return len(in.Topology) > 0 }); len(ids) > 0 {
		observed, err := f.tx.ListObserved(ids)
		if err != nil {
			return err
		}
		for _, o := range observed {
			f.of[o.AppID].Observed = append(f.of[o.AppID].Observed, o)
		}
	}
	ids := f.ids(func(in *plan.Input) bool { return len(in.Routes) > 0 })
	if len(ids) == 0 {
		return nil
	}
	observed, err := f.tx.ListRouteObserved(ids)
	for _, o := range observed {
		f.of[o.AppID].RouteObserved = append(f.of[o.AppID].RouteObserved, o)
	}
	return err
}

func (f *facts) readRegions() error {
	ids, names := map[string]bool{}, map[string]map[string]bool{}
	each := make([]map[string]bool, len(f.order))
	for i, in := range f.order {
		each[i] = regionsOf(in)
		for id := range each[i] {
			ids[id] = true
		}
		for _, name := range regionsToName(in) {
			if names[in.App.WorkspaceID] == nil {
				names[in.App.WorkspaceID] = map[string]bool{}
			}
			names[in.App.WorkspaceID][name] = true
		}
	}
	regions, err := f.tx.GetRegions(sortedKeys(ids))
	if err != nil {
		return err
	}
	byID := map[string]model.Region{}
	for _, r := range regions {
		byID[r.ID] = r
	}
	for i, in := range f.order {
		for id := range each[i] {
			if r := byID[id]; mayClose(in, r) {
				if names[in.App.WorkspaceID] == nil {
					names[in.App.WorkspaceID] = map[string]bool{}
				}
				names[in.App.WorkspaceID][r.Name] = true
			}
		}
	}
	named := map[string]map[string]model.Region{}
	for _, workspace := range sortedKeys(names) {
		regions, err := f.tx.GetRegionsByName(workspace, sortedKeys(names[workspace]))
		if err != nil {
			return err
		}
		named[workspace] = map[string]model.Region{}
		for _, r := range regions {
			named[workspace][r.Name] = r
		}
	}
	for i, in := range f.order {
		in.RegionIDs = map[string]string{}
		here := map[string]model.Region{}
		for id := range each[i] {
			r, ok := byID[id]
			if ok {
				here[id] = r
			}
			if mayClose(in, r) && named[in.App.WorkspaceID][r.Name].ID != id {
				if in.Closed == nil {
					in.Closed = map[string]bool{}
				}
				in.Closed[id] = true
			}
		}
		for _, name := range regionsToName(in) {
			if r, ok := named[in.App.WorkspaceID][name]; ok {
				in.RegionIDs[name], here[r.ID] = r.ID, r
			}
		}
		for _, id := range sortedKeys(here) {
			in.Regions = append(in.Regions, here[id])
		}
	}
	return nil
}

// mayClose reports whether the region's grant matters: it is the platform's, and something of the
// app may grow there.
func mayClose(in *plan.Input, r model.Region) bool {
	if r.ID == "" || r.WorkspaceID != "" || in.App.DeletingSince != 0 {
		return false
	}
	var progress *model.Progress
	if in.RolloutState != nil {
		progress = in.RolloutState.Progress
	}
	return len(in.Pins) > 0 || progress.Active(in.App.RolloutID) || progress.BehindIn(r.ID) != nil
}

// regionsOf are the ids that what was read names.
func regionsOf(in *plan.Input) map[string]bool {
	want := map[string]bool{}
	for _, t := range in.Topology {
		want[t.RegionID] = true
	}
	for _, r := range in.Routes {
		want[r.RegionID] = true
	}
	for _, p := range in.Pins {
		for _, r := range p.Regions {
			want[r.RegionID] = true
		}
	}
	if in.RolloutState != nil && in.RolloutState.Progress != nil {
		for _, b := range in.RolloutState.Progress.Behind {
			want[b.RegionID] = true
		}
	}
	if in.RolloutState != nil && in.RolloutState.Progress.Active(in.App.RolloutID) {
		for _, w := range in.RolloutState.Progress.Waves {
			for _, r := range w.Regions {
				want[r.RegionID] = true
			}
		}
	}
	return want
}

// regionsToName returns the names that the plan may need to turn into rows.
func regionsToName(in *plan.Input) []string {
	if in.Rollout == nil {
		return nil
	}
	for _, d := range in.Deployments {
		if d.ID == in.Rollout.DeploymentID &&
			(d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_PENDING ||
				d.Status == windlassv1.DeploymentStatus_DEPLOYMENT_STATUS_BUILDING) {
			return d.Spec.GetRegions()
		}
	}
	return nil
}
