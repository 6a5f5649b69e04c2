package mysql

import (
	"database/sql"
	"errors"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
	"github.com/windlass-run/windlass/pkg/ident"
)

func (t *tx) DeleteApps(deletedBefore int64, n int) (int, error) {
	ids, err := t.primary.ForgettableApps(t.ctx, gen.ForgettableAppsParams{DeletedBefore: deletedBefore, Limit: limitOrAll(n)})
	if err != nil || len(ids) == 0 {
		return 0, t.queryError(err, "find deleted apps", "")
	}
	// The rows of apps are deleted last, so that after a crash the next run finds the apps again.
	for _, forget := range []func() error{
		func() error { return t.q.DeleteWakesOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteClaimsOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteStagingsOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteScalingsOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteScalingDecisionsOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteScalingLoadsOfApps(t.ctx, ids) },
		func() error { return t.q.DeletePinsOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteDomainsOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteKeysOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteHistoryOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteRouteObservedOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteObservedOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteRoutesOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteRolloutsOfApps(t.ctx, ids) },
		func() error { return t.q.DeleteDeploymentsOfApps(t.ctx, ids) },
		func() error { return t.deleteEndpointsOf(ids, func(gen.NotificationEndpoint) bool { return true }) },
		func() error { return t.q.DeleteApps(t.ctx, ids) },
	} {
		if err := forget(); err != nil {
			return 0, t.queryError(err, "forget deleted app", ids[0])
		}
	}
	return len(ids), nil
}

func (t *tx) CrowdedApps(versions, entries int, after string, n int) ([]string, error) {
	ids, err := t.q.CrowdedApps(t.ctx, gen.CrowdedAppsParams{
		After: after, Versions: int64(versions), Entries: int64(entries), Limit: limitOrAll(n),
	})
	return ids, t.queryError(err, "find crowded apps", "")
}

func (t *tx) TrimVersions(app model.App, keep int32, n int) (int, error) {
	ids, err := t.primary.EndedVersions(t.ctx, gen.EndedVersionsParams{
		AppID: app.ID, Upto: app.LatestVersion - keep, Live: app.LiveDeploymentID, Previous: app.PreviousDeploymentID,
		Rollout: app.RolloutID, Limit: limitOrAll(n),
	})
	if err != nil || len(ids) == 0 {
		return 0, t.queryError(err, "find old versions of app", app.ID)
	}
	for _, forget := range []func() error{
		func() error { return t.q.DeleteObservedOfDeployments(t.ctx, ids) },
		func() error {
			return t.q.DeleteRolloutsOfDeployments(t.ctx, gen.DeleteRolloutsOfDeploymentsParams{AppID: app.ID, DeploymentIds: ids})
		},
		func() error { return t.q.DeleteDeployments(t.ctx, ids) },
	} {
		if err := forget(); err != nil {
			return 0, t.queryError(err, "trim versions of app", app.ID)
		}
	}
	return len(ids), nil
}

func (t *tx) TrimHistory(appID string, keep, n int) (int, error) {
	oldest, err := t.primary.OldestKeptHistory(t.ctx, gen.OldestKeptHistoryParams{AppID: appID, Offset: int32(max(keep-1, 0))})
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil // it has no more entries than are kept
	}
	if err != nil {
		return 0, t.queryError(err, "find old history of app", appID)
	}
	gone, err := t.q.TrimHistory(t.ctx, gen.TrimHistoryParams{AppID: appID, Before: oldest, Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "trim history of app", appID)
}

func (t *tx) TrimSecrets(keep int32, n int) (int, error) {
	rows, err := t.primary.CrowdedSecrets(t.ctx, gen.CrowdedSecretsParams{Keep: int64(keep), Limit: limitOrAll(n)})
	if err != nil {
		return 0, t.queryError(err, "find secrets with old versions", "")
	}
	for _, r := range rows {
		_, err := t.q.TrimSecret(t.ctx, gen.TrimSecretParams{EnvironmentID: r.EnvironmentID, Name: r.Name, Upto: r.Version - keep})
		if err != nil {
			return 0, t.queryError(err, "trim versions of secret", r.Name)
		}
	}
	return len(rows), nil
}

func (t *tx) DeleteScalingLoads(before int64, n int) (int, error) {
	gone, err := t.q.DeleteScalingLoads(t.ctx, gen.DeleteScalingLoadsParams{Before: before, Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "delete scaling loads", "")
}

func (t *tx) DeleteAudit(before int64, n int) (int, error) {
	gone, err := t.q.DeleteAudit(t.ctx, gen.DeleteAuditParams{Before: ident.Before("aud", time.UnixMilli(before)), Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "delete audit", "")
}

func (t *tx) DeleteJoinTokens(expiredBefore int64, n int) (int, error) {
	gone, err := t.q.DeleteJoinTokens(t.ctx, gen.DeleteJoinTokensParams{ExpiredBefore: expiredBefore, Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "delete join tokens", "")
}

func (t *tx) DeleteAPIKeys(endedBefore int64, n int) (int, error) {
	gone, err := t.q.DeleteEndedAPIKeys(t.ctx, gen.DeleteEndedAPIKeysParams{EndedBefore: endedBefore, Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "delete API keys", "")
}
