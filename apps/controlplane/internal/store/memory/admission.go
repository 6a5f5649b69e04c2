package memory

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// starts is the row of a workspace's bucket of starts and its ceiling.
type starts struct {
	workspaceID string
	fullAt      int64
	ceiling     model.Ceiling
}

func (t *tx) LockAdmission(workspaceID string) (model.Admission, error) {
	if _, _, err := workspaceTable.overlayIn(t).lock(workspaceID); err != nil {
		return model.Admission{}, err
	}
	return t.GetAdmission(workspaceID)
}

func (t *tx) GetAdmission(workspaceID string) (model.Admission, error) {
	if _, err := t.GetWorkspace(workspaceID); err != nil {
		return model.Admission{}, err
	}
	a, ok := limitsTable.overlayIn(t).get(workspaceID)
	if !ok {
		a = model.Admission{WorkspaceID: workspaceID, Own: model.NoLimitsOfItsOwn}
	}
	bucket, _ := startsTable.overlayIn(t).get(workspaceID)
	a.FullAt, a.Ceiling, a.Now = bucket.fullAt, bucket.ceiling, t.store.now()*1000
	return a, nil
}

func (t *tx) PutLimits(a model.Admission) error {
	a.FullAt, a.Ceiling, a.Now = 0, model.Ceiling{}, 0
	return limitsTable.overlayIn(t).put(a)
}

func (t *tx) PutStanding(a model.Admission) error {
	return startsTable.overlayIn(t).put(starts{a.WorkspaceID, a.FullAt, a.Ceiling})
}

func (t *tx) UsageOf(workspaceID, exceptAppID string) (u model.Usage, unsettled int, err error) {
	for _, a := range t.countedApps(workspaceID, exceptAppID) {
		c := model.Claim{LiveDeploymentID: a.LiveDeploymentID, RolloutID: a.RolloutID}
		stored, ok := claimTable.overlayIn(t).get(a.ID)
		switch {
		case ok && ofPresent(stored, a):
			c = stored
		case c.Usage().Deployments > 0:
			unsettled++
		}
		u = u.Plus(c.Usage())
	}
	return u, unsettled, nil
}

func (t *tx) UnsettledApps(workspaceID, exceptAppID, after string, limit int) ([]model.App, error) {
	apps := slices.DeleteFunc(t.countedApps(workspaceID, exceptAppID), func(a model.App) bool {
		stored, ok := claimTable.overlayIn(t).get(a.ID)
		return a.ID <= after || a.LiveDeploymentID == "" && a.RolloutID == "" || ok && ofPresent(stored, a)
	})
	slices.SortFunc(apps, func(a, b model.App) int { return cmp.Compare(a.ID, b.ID) })
	return firstRows(apps, limit), nil
}

// countedApps returns the workspace's apps that are not deleted, except the app with the id exceptAppID.
func (t *tx) countedApps(workspaceID, exceptAppID string) []model.App {
	return appTable.overlayIn(t).list(func(a model.App) bool {
		return a.WorkspaceID == workspaceID && a.DeletedAt == 0 && a.ID != exceptAppID
	})
}

// ofPresent reports whether the claim is for the app's current live deployment and rollout.
func ofPresent(c model.Claim, a model.App) bool {
	return c.LiveDeploymentID == a.LiveDeploymentID && c.RolloutID == a.RolloutID
}

func (t *tx) PutClaims(claims []model.Claim) error {
	for _, c := range claims {
		if err := claimTable.overlayIn(t).put(c); err != nil {
			return err
		}
	}
	return nil
}
