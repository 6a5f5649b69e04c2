package api

import (
	"cmp"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// A dry run is a mutation whose transaction writes nothing. The same functions run on a Tx that keeps writes in
// memory and takes no locks. The database's transaction is read-only, so a write that dryTx does not keep fails.

// dryTx keeps the writes of a mutation of one app in memory.
type dryTx struct {
	Tx
	// app is the app after the mutation, wasApp the app before it, nil if it did not exist.
	app, wasApp *model.App
	// deployments and rollouts have the written rows, by id.
	deployments map[string]model.Deployment
	rollouts    map[string]model.Rollout
	// rolloutState is the state after the mutation, and wasRolloutState is the state before it. When mutationEnded is
	// set, rollout states that are read belong to other apps, and are not kept here.
	rolloutState, wasRolloutState model.RolloutState
	mutationEnded                 bool
	// wasScaling is the app's scaling policy before the mutation. nil: the app had no automatic scaling.
	wasScaling *windlassv1.ScalingPolicy
	// wasRows are the app's rows before the mutation. rows are the rows that the mutation wrote.
	wasRows, rows []model.Topology
	// freezes has the written freezes, by name. A nil value is a deleted freeze.
	freezes map[string]*model.Freeze
	// woken means that the mutation wakes the app's workflow.
	woken bool
	// against are the errors that refuse the mutation, in the order in which they were found.
	against []error
	// warnings are the preset's warnings.
	warnings []*windlassv1.PlanFinding
	// features are the features that the version uses.
	features []*windlassv1.PlanFeature
}

func newDryTx(tx Tx) *dryTx {
	return &dryTx{Tx: tx, deployments: map[string]model.Deployment{}, rollouts: map[string]model.Rollout{}, freezes: map[string]*model.Freeze{}}
}

// collectRefusal returns err, which refuses the mutation. In a dry run, it stores the error and returns nil, so that
// the dry run finds all errors.
func (c *mutation) collectRefusal(err error) error {
	if err == nil || c.dry == nil || rpc.DetailOf(err) == nil {
		return err
	}
	c.dry.against = append(c.dry.against, err)
	return nil
}

func (t *dryTx) LockEnvironment(workspaceID, id string) (model.Environment, error) {
	return t.GetEnvironment(workspaceID, id)
}

func (t *dryTx) InsertApp(a model.App) error {
	t.app = &a
	return nil
}

func (t *dryTx) GetApp(workspaceID, id string) (model.App, error) {
	if t.app != nil && t.app.ID == id {
		return *t.app, nil
	}
	return t.Tx.GetApp(workspaceID, id)
}

func (t *dryTx) LockApp(workspaceID, id string) (model.App, error) {
	app, err := t.GetApp(workspaceID, id)
	if err == nil && t.app == nil {
		now := app
		t.app, t.wasApp = &now, &app
	}
	return app, err
}

func (t *dryTx) UpdateApp(a model.App) error {
	a.ResourceVersion++
	t.app = &a
	return nil
}

func (t *dryTx) InsertDeployment(d model.Deployment) error { return t.UpdateDeployment(d) }

func (t *dryTx) UpdateDeployment(deployments ...model.Deployment) error {
	for _, d := range deployments {
		t.deployments[d.ID] = d
	}
	return nil
}

func (t *dryTx) InsertRollout(r model.Rollout) error { return t.UpdateRollout(r) }

func (t *dryTx) UpdateRollout(rollouts ...model.Rollout) error {
	for _, r := range rollouts {
		t.rollouts[r.ID] = r
	}
	return nil
}

func (t *dryTx) GetRolloutStates(appIDs []string) ([]model.RolloutState, error) {
	rows, err := t.Tx.GetRolloutStates(appIDs)
	if len(rows) > 0 && !t.mutationEnded {
		t.wasRolloutState, t.rolloutState = rows[0].Clone(), rows[0].Clone()
	}
	return rows, err
}

func (t *dryTx) PutRolloutState(s model.RolloutState) error {
	t.rolloutState = s.Clone()
	return nil
}

func (t *dryTx) GetScalings(appIDs []string) ([]model.Scaling, error) {
	rows, err := t.Tx.GetScalings(appIDs)
	if len(rows) > 0 {
		t.wasScaling = rows[0].Policy
	}
	return rows, err
}

func (t *dryTx) PutScaling(model.Scaling) error { return nil }

func (t *dryTx) PutFreeze(f model.Freeze) error {
	t.freezes[f.Name] = &f
	return nil
}

func (t *dryTx) DeleteFreeze(_, name string) error {
	t.freezes[name] = nil
	return nil
}

func (t *dryTx) ListFreezesFor(workspaceID, name string, appIDs ...string) ([]model.Freeze, error) {
	rows, err := t.Tx.ListFreezesFor(workspaceID, name, appIDs...)
	rows = slices.DeleteFunc(rows, func(f model.Freeze) bool {
		_, written := t.freezes[f.Name]
		return written
	})
	for _, n := range slices.Sorted(maps.Keys(t.freezes)) {
		if f := t.freezes[n]; f != nil {
			rows = append(rows, *f)
		}
	}
	return rows, err
}

func (t *dryTx) LockTopology(appIDs ...string) ([]model.Topology, error) {
	rows, err := t.ListTopology(appIDs)
	t.wasRows = slices.Clone(rows)
	return rows, err
}

func (t *dryTx) PutTopology(rows []model.Topology) error {
	t.rows = append(t.rows, rows...)
	return nil
}

func (t *dryTx) Change(string, model.ChangeKind, string, int64) {}

func (t *dryTx) Wake([]string, int64, int64) error {
	t.woken = true
	return nil
}

func (t *dryTx) InsertHistory([]model.History) error { return nil }

func (t *dryTx) InsertAudit(...model.Audit) error { return nil }

func (t *dryTx) LockAdmission(workspaceID string) (model.Admission, error) {
	return t.GetAdmission(workspaceID)
}

func (t *dryTx) PutStanding(model.Admission) error { return nil }

func (t *dryTx) PutClaims([]model.Claim) error { return nil }

// topologyAfter returns the app's rows after the mutation.
func (t *dryTx) topologyAfter() []model.Topology {
	rows := withReplaced(t.wasRows, t.rows)
	slices.SortFunc(rows, func(a, b model.Topology) int {
		return cmp.Or(cmp.Compare(a.DeploymentID, b.DeploymentID), cmp.Compare(a.RegionID, b.RegionID))
	})
	return rows
}

// afterTx reads the state after the mutation.
type afterTx struct{ *dryTx }

func (t afterTx) ListTopology([]string) ([]model.Topology, error) { return t.topologyAfter(), nil }

func (t afterTx) GetRollouts(ids []string) ([]model.Rollout, error) {
	return afterWrites(ids, t.rollouts, t.Tx.GetRollouts)
}

func (t afterTx) GetDeployments(ids []string) ([]model.Deployment, error) {
	return afterWrites(ids, t.deployments, t.Tx.GetDeployments)
}

// afterWrites returns the rows with the ids. It takes written rows from written, and reads other rows with read.
func afterWrites[R any](ids []string, written map[string]R, read func([]string) ([]R, error)) ([]R, error) {
	var out []R
	var rest []string
	for _, id := range ids {
		if row, ok := written[id]; ok {
			out = append(out, row)
		} else {
			rest = append(rest, id)
		}
	}
	if len(rest) == 0 {
		return out, nil
	}
	found, err := read(rest)
	return append(out, found...), err
}

func (t afterTx) GetActiveRollouts(ids []string) ([]model.ActiveRollout, error) {
	rollouts, err := t.GetRollouts(ids)
	if err != nil {
		return nil, err
	}
	var out []model.ActiveRollout
	for _, r := range rollouts {
		deployments, err := t.GetDeployments([]string{r.DeploymentID})
		if err != nil {
			return nil, err
		}
		states, err := t.GetRolloutStates([]string{r.AppID})
		if err != nil {
			return nil, err
		}
		for _, d := range deployments {
			active := model.ActiveRollout{Rollout: r, Deployment: d}
			if len(states) > 0 {
				active.RolloutState = &states[0]
			}
			out = append(out, active)
		}
	}
	return out, nil
}

func (t afterTx) GetRolloutStates([]string) ([]model.RolloutState, error) {
	if t.rolloutState.AppID == "" {
		return nil, nil
	}
	return []model.RolloutState{t.rolloutState.Clone()}, nil
}
