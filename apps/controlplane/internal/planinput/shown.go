package planinput

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
)

// Known has rows that the caller of Shown has already read.
type Known struct {
	// Deployments of the apps.
	Deployments []model.Deployment
	// RolloutStates of all apps; nil: Shown reads them.
	RolloutStates []model.RolloutState
}

// Shown reads the rows that views of apps show: what the apps run, what regions report, and deployments that a
// view may name although no plan decides about them.
func Shown(tx Tx, apps []model.App, known Known) ([]*plan.Input, error) {
	l := newLoader(tx, apps)
	l.deployments, l.pastWaves = shownDeployments, true
	for _, d := range known.Deployments {
		if in := l.of[d.AppID]; in != nil {
			in.Deployments = append(in.Deployments, d)
		}
	}
	return l.load(
		l.readTopology, l.readRollouts, func() error { return l.takeRolloutStates(known.RolloutStates) }, l.readPins, l.readDeployments,
		l.readObserved, l.readRegions,
	)
}

// readRollouts reads rollouts without their deployments and states, because few apps of a list have a
// rollout in flight.
func (l *loader) readRollouts() error { return l.addRollouts(l.rolloutInputs()) }

func (l *loader) takeRolloutStates(known []model.RolloutState) error {
	if known == nil {
		return addRows(l, func(*plan.Input) bool { return true }, l.tx.GetRolloutStates, l.addRolloutState)
	}
	for _, s := range known {
		l.addRolloutState(s)
	}
	return nil
}

// shownDeployments returns the ids of deployments that serve or served last, that run anywhere, that are
// pinned, or that a lagging region catches up to.
func shownDeployments(in *plan.Input) map[string]bool {
	want := map[string]bool{in.App.LiveDeploymentID: true, in.App.PreviousDeploymentID: true}
	for _, t := range in.Topology {
		if plan.Active(t) {
			want[t.DeploymentID] = true
		}
	}
	for _, p := range in.Pins {
		want[p.DeploymentID] = true
	}
	if progress := progressOf(in); progress != nil {
		for _, b := range progress.Lagging {
			want[b.DeploymentID] = true
		}
	}
	return want
}
