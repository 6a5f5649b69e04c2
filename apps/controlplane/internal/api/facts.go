package api

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
)

// facts are what views of some apps are made of, read in a number of queries that
// does not depend on how many apps, deployments, regions or instances there are.
// (Names of projects and environments are read once for each that differs.)
type facts struct {
	domain       string // below which hosts of apps are
	projects     map[string]model.Project
	environments map[string]model.Environment
	deployments  map[string]model.Deployment
	// rows by app, sorted by (deployment, region); observed by deployment+region.
	rows     map[string][]model.Topology
	observed map[[2]string]model.Observed
	regions  map[string]model.Region
	// rollout states of apps; zero, or there is none, for one that has none.
	rolloutStates map[string]model.RolloutState
	// pins by app, by version.
	pins map[string][]model.Pin
	// rollouts in flight, by id.
	rollouts map[string]model.Rollout
}

// facts gathers those of apps of one workspace, and of the deployments given,
// which are among theirs.
func (a *API) facts(tx Tx, apps []model.App, deployments []model.Deployment) (facts, error) {
	return a.factsBeside(tx, apps, deployments, nil)
}

// factsOf an app of which it was read what it runs.
func (a *API) factsOf(tx Tx, app model.App, r running) (facts, error) {
	var known []model.Deployment
	for _, d := range []*model.Deployment{r.live, r.flight.deployment, r.flight.leaving} {
		if d != nil {
			known = append(known, *d)
		}
	}
	return a.factsBeside(tx, []model.App{app}, known, []model.RolloutState{r.rolloutState})
}

// factsBeside the deployments, and the rollout states of all apps; nil: they will be read.
func (a *API) factsBeside(tx Tx, apps []model.App, deployments []model.Deployment, rolloutStates []model.RolloutState) (f facts, err error) {
	f = facts{
		domain:   a.cfg.Domain,
		projects: map[string]model.Project{}, environments: map[string]model.Environment{},
		deployments: map[string]model.Deployment{}, rows: map[string][]model.Topology{},
		observed: map[[2]string]model.Observed{}, regions: map[string]model.Region{},
		rolloutStates: map[string]model.RolloutState{}, rollouts: map[string]model.Rollout{},
		pins: map[string][]model.Pin{},
	}
	var appIDs, rolloutIDs, pinnable []string
	for _, app := range apps {
		appIDs = append(appIDs, app.ID)
		if app.LatestVersion > 1 { // one version has nothing to be pinned beside
			pinnable = append(pinnable, app.ID)
		}
		if app.RolloutID != "" {
			rolloutIDs = append(rolloutIDs, app.RolloutID)
		}
	}
	if err := readNames(tx, f, apps); err != nil {
		return f, err
	}
	rows, err := tx.ListTopology(appIDs)
	if err != nil {
		return f, fmt.Errorf("list topology: %w", err)
	}
	if len(rolloutIDs) > 0 {
		rollouts, err := tx.GetRollouts(rolloutIDs)
		if err != nil {
			return f, fmt.Errorf("read rollouts: %w", err)
		}
		for _, r := range rollouts {
			f.rollouts[r.ID] = r
		}
	}
	want := map[string]bool{}
	for _, app := range apps {
		want[app.LiveDeploymentID], want[app.PreviousDeploymentID] = true, true
	}
	if rolloutStates == nil {
		if rolloutStates, err = tx.GetRolloutStates(appIDs); err != nil {
			return f, fmt.Errorf("read rollout states: %w", err)
		}
	}
	regionIDs := map[string]bool{}
	pins, err := tx.ListPins(pinnable)
	if err != nil {
		return f, fmt.Errorf("list pins: %w", err)
	}
	for _, p := range pins {
		f.pins[p.AppID] = append(f.pins[p.AppID], p)
		want[p.DeploymentID] = true
		for _, r := range p.Regions {
			regionIDs[r.RegionID] = true
		}
	}
	for _, s := range rolloutStates {
		f.rolloutStates[s.AppID] = s
		if s.Progress == nil {
			continue
		}
		for _, w := range s.Progress.Waves {
			for _, r := range w.Regions {
				regionIDs[r.RegionID] = true
			}
		}
		for _, b := range s.Progress.Behind {
			regionIDs[b.RegionID], want[b.DeploymentID] = true, true
		}
	}
	for _, t := range rows {
		f.rows[t.AppID] = append(f.rows[t.AppID], t)
		regionIDs[t.RegionID] = true
		if topology.Active(t) {
			want[t.DeploymentID] = true
		}
	}
	for _, d := range deployments {
		f.deployments[d.ID] = d
		delete(want, d.ID)
	}
	delete(want, "")
	found, err := tx.GetDeployments(keys(want))
	if err != nil {
		return f, fmt.Errorf("read deployments: %w", err)
	}
	for _, d := range found {
		f.deployments[d.ID] = d
	}
	observed, err := tx.ListObserved(appIDs)
	if err != nil {
		return f, fmt.Errorf("read what regions report: %w", err)
	}
	for _, o := range observed {
		f.observed[[2]string{o.DeploymentID, o.RegionID}] = o
	}
	regions, err := tx.GetRegions(keys(regionIDs))
	if err != nil {
		return f, fmt.Errorf("read regions: %w", err)
	}
	for _, r := range regions {
		f.regions[r.ID] = r
	}
	return f, nil
}

// rescaled reads again what differs once an app has other replicas.
func (f facts) rescaled(tx Tx, appID string) (err error) {
	if f.rows[appID], err = tx.ListTopology([]string{appID}); err != nil {
		return fmt.Errorf("list topology: %w", err)
	}
	if f.rolloutStates[appID].Progress == nil {
		return nil
	}
	rolloutStates, err := tx.GetRolloutStates([]string{appID})
	if err != nil {
		return fmt.Errorf("read rollout states: %w", err)
	}
	for _, s := range rolloutStates {
		f.rolloutStates[s.AppID] = s
	}
	return nil
}

// places are the deployment's rows that keep, by the name of the region.
func (f facts) places(appID, deploymentID string, keep func(model.Topology) bool) []rollup.Place {
	var places []rollup.Place
	for _, t := range f.rows[appID] {
		if t.DeploymentID == deploymentID && keep(t) {
			places = append(places, f.place(t))
		}
	}
	slices.SortStableFunc(places, byName)
	return places
}

func (f facts) place(t model.Topology) rollup.Place {
	return rollup.Place{
		Row:      t,
		Observed: f.observedOf(t),
		Region:   f.regions[t.RegionID],
		MinReady: f.deployments[t.DeploymentID].Spec.GetMinReady(),
	}
}

func byName(a, b rollup.Place) int {
	switch {
	case a.Name() < b.Name():
		return -1
	case a.Name() > b.Name():
		return 1
	}
	return 0
}

func keys(set map[string]bool) []string {
	ids := make([]string, 0, len(set))
	for id := range set {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
