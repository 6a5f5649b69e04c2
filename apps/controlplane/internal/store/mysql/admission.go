package mysql

import (
	"cmp"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
)

func admissionFromRow(r gen.GetAdmissionRow) (model.Admission, error) {
	return model.Admission{
		WorkspaceID: r.ID,
		Own: model.Limits{
			Apps: r.Apps, Deployments: r.Deployments, Instances: r.Instances, GPUs: r.Gpus, Rollouts: r.Rollouts,
			StartsPerMinute: r.StartsPerMinute, StartsBurst: r.StartsBurst,
		},
		UpdatedAt: r.UpdatedAt, ResourceVersion: r.ResourceVersion, FullAt: r.FullAt, Now: r.NowAt,
		Ceiling: model.Ceiling{CountedAt: r.CountedAt, Usage: model.Usage{
			Apps: r.HasApps, Deployments: r.HasDeployments, Instances: r.HasInstances, GPUs: r.HasGpus, Rollouts: r.HasRollouts,
		}},
	}, nil
}

func (t *tx) LockAdmission(workspaceID string) (model.Admission, error) {
	if err := t.requireUpdate("lock workspace", workspaceID); err != nil {
		return model.Admission{}, err
	}
	c := t.shared
	if c != nil {
		if a, ok := c.admissions[workspaceID]; ok {
			return a, nil
		}
	}
	done := t.ignoreDeferred()
	defer done()
	r, err := t.q.LockAdmission(t.ctx, workspaceID)
	a, err := get(t, "lock workspace", workspaceID, admissionFromRow)(gen.GetAdmissionRow(r), err)
	if c != nil && err == nil {
		c.admissions[workspaceID] = a
		clear(c.read) // the transaction that held the lock before may have changed the rows, so queries under the lock read them again
	}
	return a, err
}

func (t *tx) GetAdmission(workspaceID string) (model.Admission, error) {
	return get(t, "get limits of workspace", workspaceID, admissionFromRow)(t.q.GetAdmission(t.ctx, workspaceID))
}

func (t *tx) PutLimits(a model.Admission) error {
	return t.queryError(t.q.PutLimits(t.ctx, gen.PutLimitsParams{
		WorkspaceID: a.WorkspaceID, Apps: a.Own.Apps, Deployments: a.Own.Deployments, Instances: a.Own.Instances,
		Gpus: a.Own.GPUs, Rollouts: a.Own.Rollouts, StartsPerMinute: a.Own.StartsPerMinute, StartsBurst: a.Own.StartsBurst,
		UpdatedAt: a.UpdatedAt, ResourceVersion: a.ResourceVersion,
	}), "put limits of workspace", a.WorkspaceID)
}

func (t *tx) PutStanding(a model.Admission) error {
	c := t.shared
	if c == nil {
		return t.putStanding(a)
	}
	t.bindMember()
	c.admissions[a.WorkspaceID] = a
	keepRows(c, &c.late.standings, nil, a)
	return nil
}

// putStandings writes the last row of each workspace.
func (t *tx) putStandings(rows []model.Admission) error {
	last := map[string]model.Admission{}
	for _, a := range rows {
		last[a.WorkspaceID] = a
	}
	for _, id := range slices.Sorted(maps.Keys(last)) {
		if err := t.putStanding(last[id]); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) putStanding(a model.Admission) error {
	return t.queryError(t.q.PutStanding(t.ctx, gen.PutStandingParams{
		WorkspaceID: a.WorkspaceID, FullAt: a.FullAt, CountedAt: a.Ceiling.CountedAt,
		Apps: a.Ceiling.Apps, Deployments: a.Ceiling.Deployments, Instances: a.Ceiling.Instances,
		Gpus: a.Ceiling.GPUs, Rollouts: a.Ceiling.Rollouts,
	}), "put standing of workspace", a.WorkspaceID)
}

func (t *tx) UsageOf(workspaceID, exceptAppID string) (model.Usage, int, error) {
	r, err := t.q.UsageOfWorkspace(t.ctx, gen.UsageOfWorkspaceParams{WorkspaceID: workspaceID, ExceptAppID: exceptAppID})
	if err != nil {
		return model.Usage{}, 0, t.queryError(err, "add up usage of workspace", workspaceID)
	}
	return model.Usage{
		Apps: r.Apps, Deployments: r.Deployments, Instances: r.Instances, GPUs: r.Gpus, Rollouts: r.Rollouts,
	}, int(r.Unsettled), nil
}

func (t *tx) UnsettledApps(workspaceID, exceptAppID, after string, n int) ([]model.App, error) {
	return list(t, "list unsettled apps of", workspaceID, appFromRow)(t.q.UnsettledApps(t.ctx, gen.UnsettledAppsParams{
		WorkspaceID: workspaceID, ExceptAppID: exceptAppID, After: after, Limit: limitOrAll(n),
	}))
}

var (
	claimColumns = []string{"app_id", "workspace_id", "live_deployment_id", "rollout_id", "instances", "gpus"}
	putClaims    = insertInto("PutClaims", "app_claims", claimColumns...).replacingColumns(claimColumns[1:]...)
)

func (t *tx) PutClaims(claims []model.Claim) error {
	if c := t.shared; c != nil {
		keepRows(c, &c.late.claims, nil, claims...)
		return nil
	}
	return t.putClaims(slices.Clone(claims))
}

func (t *tx) putClaims(claims []model.Claim) error {
	slices.SortStableFunc(claims, func(a, b model.Claim) int { return cmp.Compare(a.AppID, b.AppID) })
	return t.queryError(runBulk(t, t.db, putClaims, claims, func(args []any, c model.Claim) []any {
		return append(args, c.AppID, c.WorkspaceID, c.LiveDeploymentID, c.RolloutID, c.Instances, c.GPUs)
	}), "put claims", "")
}
