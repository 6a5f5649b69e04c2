package memory

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
)

// forgetRows deletes the rows that match, at most limit of them in the order of less. A limit of 0 deletes all.
func forgetRows[K comparable, V any](o *overlay[K, V], limit int, match func(V) bool, less func(a, b V) int) (int, error) {
	rows, err := o.lockList(match)
	if err != nil {
		return 0, err
	}
	if less != nil {
		slices.SortFunc(rows, less)
	}
	rows = firstRows(rows, limit)
	for _, v := range rows {
		if err := o.delete(o.key(v)); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

func (t *tx) DeleteApps(deletedBefore int64, limit int) (int, error) {
	placed := map[string]bool{}
	for _, r := range topologyTable.overlayIn(t).list(func(model.Topology) bool { return true }) {
		placed[r.AppID] = true
	}
	rows := appTable.overlayIn(t).list(func(a model.App) bool { return a.DeletedAt > 0 && a.DeletedAt < deletedBefore && !placed[a.ID] })
	slices.SortFunc(rows, func(a, b model.App) int { return cmp.Compare(a.ID, b.ID) })
	rows = firstRows(rows, limit)
	for _, a := range rows {
		var errs []error
		all := func(_ int, err error) { errs = append(errs, err) }
		all(forgetRows(wakeTable.overlayIn(t), 0, func(w model.Wake) bool { return w.AppID == a.ID }, nil))
		all(forgetRows(claimTable.overlayIn(t), 0, func(c model.Claim) bool { return c.AppID == a.ID }, nil))
		all(forgetRows(pinTable.overlayIn(t), 0, func(p model.Pin) bool { return p.AppID == a.ID }, nil))
		all(forgetRows(appKeyTable.overlayIn(t), 0, func(k model.AppKey) bool { return k.AppID == a.ID }, nil))
		all(forgetRows(domainTable.overlayIn(t), 0, func(d model.Domain) bool { return d.AppID == a.ID }, nil))
		all(forgetRows(scalingTable.overlayIn(t), 0, func(s model.Scaling) bool { return s.AppID == a.ID }, nil))
		all(forgetRows(scalingLoadTable.overlayIn(t), 0, func(c model.LoadChunk) bool { return c.AppID == a.ID }, nil))
		all(forgetRows(scalingDecisionTable.overlayIn(t), 0, func(d model.ScalingDecision) bool { return d.AppID == a.ID }, nil))
		all(forgetRows(rolloutStateTable.overlayIn(t), 0, func(s model.RolloutState) bool { return s.AppID == a.ID }, nil))
		all(forgetRows(historyTable.overlayIn(t), 0, func(h model.History) bool { return h.AppID == a.ID }, nil))
		all(forgetRows(routeObservedTable.overlayIn(t), 0, func(o model.RouteObserved) bool { return o.AppID == a.ID }, nil))
		all(forgetRows(observedTable.overlayIn(t), 0, func(o model.Observed) bool { return o.AppID == a.ID }, nil))
		all(forgetRows(routeTable.overlayIn(t), 0, func(r model.Route) bool { return r.AppID == a.ID }, nil))
		all(forgetRows(rolloutTable.overlayIn(t), 0, func(r model.Rollout) bool { return r.AppID == a.ID }, nil))
		all(forgetRows(deploymentTable.overlayIn(t), 0, func(d model.Deployment) bool { return d.AppID == a.ID }, nil))
		errs = append(errs, t.deleteEndpoints(func(e model.NotificationEndpoint) bool { return e.ScopeID == a.ID }), appTable.overlayIn(t).delete(a.ID))
		if err := errors.Join(errs...); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

func (t *tx) CrowdedApps(versions, entries int, after string, limit int) ([]string, error) {
	counts := map[string][2]int{}
	for _, d := range deploymentTable.overlayIn(t).list(func(d model.Deployment) bool { return d.AppID > after }) {
		c := counts[d.AppID]
		c[0]++
		counts[d.AppID] = c
	}
	for _, h := range historyTable.overlayIn(t).list(func(h model.History) bool { return h.AppID > after }) {
		c := counts[h.AppID]
		c[1]++
		counts[h.AppID] = c
	}
	var ids []string
	for id, c := range counts {
		if c[0] > versions || c[1] > entries {
			ids = append(ids, id)
		}
	}
	return firstRows(sortDistinct(ids), limit), nil
}

func (t *tx) TrimVersions(app model.App, keep int32, limit int) (int, error) {
	spared := map[string]bool{app.LiveDeploymentID: true, app.PreviousDeploymentID: true}
	if r, ok := rolloutTable.overlayIn(t).get(app.RolloutID); ok {
		spared[r.DeploymentID] = true
	}
	for _, r := range topologyTable.overlayIn(t).list(func(r model.Topology) bool { return r.AppID == app.ID }) {
		spared[r.DeploymentID] = true
	}
	for _, p := range pinTable.overlayIn(t).list(func(p model.Pin) bool { return p.AppID == app.ID }) {
		spared[p.DeploymentID] = true
	}
	old := func(d model.Deployment) bool {
		return d.AppID == app.ID && d.Version <= app.LatestVersion-keep && !spared[d.ID] && model.Terminal(model.DeploymentMoves, d.Status)
	}
	rows := deploymentTable.overlayIn(t).list(old)
	slices.SortFunc(rows, func(a, b model.Deployment) int { return cmp.Compare(a.Version, b.Version) })
	rows = firstRows(rows, limit)
	for _, d := range rows {
		_, err := forgetRows(rolloutTable.overlayIn(t), 0, func(r model.Rollout) bool { return r.DeploymentID == d.ID }, nil)
		if err != nil {
			return 0, err
		}
		if _, err := forgetRows(observedTable.overlayIn(t), 0, func(o model.Observed) bool { return o.DeploymentID == d.ID }, nil); err != nil {
			return 0, err
		}
		if err := deploymentTable.overlayIn(t).delete(d.ID); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

func (t *tx) TrimHistory(appID string, keep, limit int) (int, error) {
	rows := historyTable.overlayIn(t).list(func(h model.History) bool { return h.AppID == appID })
	slices.SortFunc(rows, func(a, b model.History) int { return cmp.Compare(a.ID, b.ID) })
	rows = firstRows(rows[:max(len(rows)-max(keep, 1), 0)], limit)
	for _, h := range rows {
		if err := historyTable.overlayIn(t).delete(h.ID); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

func (t *tx) TrimSecrets(keep int32, limit int) (int, error) {
	crowded := map[pair]int32{}
	for _, v := range secretVersionTable.overlayIn(t).list(func(secretVersion) bool { return true }) {
		if s, ok := secretTable.overlayIn(t).get(v.key.name); ok && v.key.version <= s.version-keep {
			crowded[v.key.name] = s.version - keep
		}
	}
	var names []pair
	for name := range crowded {
		names = append(names, name)
	}
	slices.SortFunc(names, byPlace)
	names = firstRows(names, limit)
	for _, name := range names {
		_, err := forgetRows(secretVersionTable.overlayIn(t), 0, func(v secretVersion) bool {
			return v.key.name == name && v.key.version <= crowded[name]
		}, nil)
		if err != nil {
			return 0, err
		}
	}
	return len(names), nil
}

func (t *tx) DeleteAudit(before int64, limit int) (int, error) {
	oldest := ident.Before("aud", time.UnixMilli(before))
	return forgetRows(auditTable.overlayIn(t), limit, func(a model.Audit) bool { return a.ID < oldest },
		func(a, b model.Audit) int { return cmp.Compare(a.ID, b.ID) })
}

func (t *tx) DeleteJoinTokens(expiredBefore int64, limit int) (int, error) {
	return forgetRows(joinTokenTable.overlayIn(t), limit, func(j model.JoinToken) bool { return j.ExpiresAt < expiredBefore },
		func(a, b model.JoinToken) int { return cmp.Compare(a.ID, b.ID) })
}

func (t *tx) DeleteAPIKeys(endedBefore int64, limit int) (int, error) {
	return forgetRows(apiKeyTable.overlayIn(t), limit, func(k model.APIKey) bool {
		return k.RevokedAt > 0 && k.RevokedAt < endedBefore || k.ExpiresAt > 0 && k.ExpiresAt < endedBefore
	}, func(a, b model.APIKey) int { return cmp.Compare(a.ID, b.ID) })
}
