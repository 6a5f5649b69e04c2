package api

import (
	"fmt"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/planinput"
	"github.com/windlass-run/windlass/apps/controlplane/internal/rollup"
)

// facts are the rows from which views of apps are made, by id. The number of queries that read them does not
// depend on the number of apps, deployments, regions or instances.
type facts struct {
	domain       string // the domain below which apps have hosts
	projects     map[string]model.Project
	environments map[string]model.Environment
	deployments  map[string]model.Deployment
	// rows are by app, sorted by (deployment, region). observed are by deployment and region.
	rows     map[string][]model.Topology
	observed map[[2]string]model.Observed
	regions  map[string]model.Region
	// rolloutStates are by app. An app without a state has no entry or a zero entry.
	rolloutStates map[string]model.RolloutState
	// pins are by app, sorted by version.
	pins map[string][]model.Pin
	// rollouts are the rollouts in flight, by id.
	rollouts map[string]model.Rollout
}

// loadFacts returns the facts of apps of one workspace. deployments are deployments of the apps that were already read.
func (a *server) loadFacts(tx Tx, apps []model.App, deployments []model.Deployment) (facts, error) {
	return a.readFacts(tx, apps, planinput.Known{Deployments: deployments})
}

// factsOf returns the facts of an app. It takes versions and the rollout from r where r has them.
func (a *server) factsOf(tx Tx, app model.App, r running) (facts, error) {
	known := planinput.Known{RolloutStates: []model.RolloutState{r.rolloutState}}
	for _, d := range []*model.Deployment{r.live, r.active.deployment, r.active.leaving} {
		if d != nil {
			known.Deployments = append(known.Deployments, *d)
		}
	}
	return a.readFacts(tx, []model.App{app}, known)
}

func (a *server) readFacts(tx Tx, apps []model.App, known planinput.Known) (facts, error) {
	f := facts{
		domain:   a.cfg.Domain,
		projects: map[string]model.Project{}, environments: map[string]model.Environment{},
		deployments: map[string]model.Deployment{}, rows: map[string][]model.Topology{},
		observed: map[[2]string]model.Observed{}, regions: map[string]model.Region{},
		rolloutStates: map[string]model.RolloutState{}, rollouts: map[string]model.Rollout{},
		pins: map[string][]model.Pin{},
	}
	if err := readNames(tx, f, apps); err != nil {
		return f, err
	}
	inputs, err := planinput.Shown(tx, apps, known)
	if err != nil {
		return f, fmt.Errorf("read what apps run: %w", err)
	}
	for _, in := range inputs {
		f.rows[in.App.ID], f.pins[in.App.ID] = in.Topology, in.Pins
		if in.Rollout != nil {
			f.rollouts[in.Rollout.ID] = *in.Rollout
		}
		if in.RolloutState != nil {
			f.rolloutStates[in.App.ID] = *in.RolloutState
		}
		for _, d := range in.Deployments {
			f.deployments[d.ID] = d
		}
		for _, o := range in.Observed {
			f.observed[[2]string{o.DeploymentID, o.RegionID}] = o
		}
		for _, r := range in.Regions {
			f.regions[r.ID] = r
		}
	}
	return f, nil
}

// readScaledRows reads the rows again that change when an app is scaled.
func (f facts) readScaledRows(tx Tx, appID string) (err error) {
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

// placesOf returns the deployment's rows for which keep returns true, sorted by the region's name.
func (f facts) placesOf(appID, deploymentID string, keep func(model.Topology) bool) []rollup.Place {
	var places []rollup.Place
	for _, t := range f.rows[appID] {
		if t.DeploymentID == deploymentID && keep(t) {
			places = append(places, f.placeOf(t))
		}
	}
	slices.SortStableFunc(places, byName)
	return places
}

func (f facts) placeOf(t model.Topology) rollup.Place {
	return rollup.Place{
		Row:      t,
		Observed: f.observedOf(t),
		Region:   f.regions[t.RegionID],
		MinReady: f.deployments[t.DeploymentID].Spec.GetMinReady(),
		Spec:     t.In(f.deployments[t.DeploymentID].Spec),
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

func keysOf(set map[string]bool) []string {
	ids := make([]string, 0, len(set))
	for id := range set {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
