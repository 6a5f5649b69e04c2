package memory

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (t *tx) CountRegions() (map[windlassv1.RegionStatus]int, error) {
	counts := map[windlassv1.RegionStatus]int{}
	for _, r := range regionTable.overlayIn(t).list(func(model.Region) bool { return true }) {
		counts[r.Status]++
	}
	return counts, nil
}

func (t *tx) InsertRegion(r model.Region) error {
	if err := regionTable.overlayIn(t).insert(r); err != nil {
		return err
	}
	h := head{
		Head:      model.Head{RegionID: r.ID, Epoch: 1, Chain: changefeed.Genesis()},
		baseChain: changefeed.Genesis(),
	}
	if err := headTable.overlayIn(t).insert(h); err != nil {
		return err
	}
	return logTable.overlayIn(t).insert(logRow{region: r.ID})
}

func (t *tx) GetRegion(id string) (model.Region, error) {
	r, ok := regionTable.overlayIn(t).get(id)
	return oneRow(r, ok, "region", id)
}

func (t *tx) LockRegion(id string) (model.Region, error) {
	r, ok, err := regionTable.overlayIn(t).lock(id)
	if err != nil {
		return model.Region{}, err
	}
	return oneRow(r, ok, "region", id)
}

func (t *tx) GetRegions(ids []string) ([]model.Region, error) {
	var rows []model.Region
	for _, id := range sortDistinct(ids) {
		if r, ok := regionTable.overlayIn(t).get(id); ok {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// GetRegionsByName prefers a region of the workspace to a granted region with the same name.
func (t *tx) GetRegionsByName(workspaceID string, names []string) ([]model.Region, error) {
	var rows []model.Region
	for _, name := range sortDistinct(names) {
		if r, err := t.GetRegionByName(workspaceID, name); err == nil {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

func (t *tx) GetRegionByName(workspaceID, name string) (model.Region, error) {
	if r, ok := regionTable.overlayIn(t).find(0, workspaceID+"\x00"+name); ok {
		return r, nil
	}
	r, ok := regionTable.overlayIn(t).find(0, "\x00"+name)
	if ok {
		_, ok = grantTable.overlayIn(t).get(pair{r.ID, workspaceID})
	}
	return oneRow(r, ok, "region", name)
}

func (t *tx) ListGateways(waiting bool, p store.Page) ([]model.Region, error) {
	rows := regionTable.overlayIn(t).list(func(r model.Region) bool {
		return r.WorkspaceID != "" && r.GatewayURL != "" && (!waiting || !r.GatewayApproved())
	})
	return pageOf(rows, p, func(r model.Region) string { return r.ID }), nil
}

func (t *tx) ListRegions(workspaceID string, p store.Page) ([]model.Region, error) {
	owned := map[string]bool{}
	rows := regionTable.overlayIn(t).list(func(r model.Region) bool { return r.WorkspaceID == workspaceID })
	for _, r := range rows {
		owned[r.Name] = true
	}
	if workspaceID != "" {
		granted := map[string]bool{}
		for _, g := range grantTable.overlayIn(t).list(func(g grant) bool { return g.key.b == workspaceID }) {
			granted[g.key.a] = true
		}
		rows = append(rows, regionTable.overlayIn(t).list(func(r model.Region) bool {
			return r.WorkspaceID == "" && granted[r.ID] && !owned[r.Name]
		})...)
	}
	return pageOf(rows, p, func(r model.Region) string { return r.Name }), nil
}

func (t *tx) RegionsOf(workspaceIDs []string) ([]model.WorkspaceRegion, error) {
	of := setOf(workspaceIDs)
	var out []model.WorkspaceRegion
	for _, r := range regionTable.overlayIn(t).list(func(r model.Region) bool { return r.WorkspaceID != "" && of[r.WorkspaceID] }) {
		out = append(out, model.WorkspaceRegion{WorkspaceID: r.WorkspaceID, RegionID: r.ID, RegionName: r.Name})
	}
	for _, g := range grantTable.overlayIn(t).list(func(g grant) bool { return of[g.key.b] }) {
		if r, ok := regionTable.overlayIn(t).get(g.key.a); ok && r.WorkspaceID == "" {
			out = append(out, model.WorkspaceRegion{WorkspaceID: g.key.b, RegionID: r.ID, RegionName: r.Name, Platform: true})
		}
	}
	slices.SortFunc(out, func(a, b model.WorkspaceRegion) int {
		return cmp.Or(cmp.Compare(a.WorkspaceID, b.WorkspaceID), cmp.Compare(a.RegionID, b.RegionID))
	})
	return out, nil
}

func (t *tx) AllRegions(p store.Page) ([]model.Region, error) {
	rows := regionTable.overlayIn(t).list(func(model.Region) bool { return true })
	return pageOf(rows, p, func(r model.Region) string { return r.ID }), nil
}

func (t *tx) UpdateRegion(r model.Region) error {
	stored, ok, err := regionTable.overlayIn(t).lock(r.ID)
	switch {
	case err != nil:
		return err
	case !ok:
		return notFound("region", r.ID)
	case stored.ResourceVersion != r.ResourceVersion:
		return conflictError("region", r.ID)
	}
	stored.Labels, stored.CredentialNotBefore, stored.Message = r.Labels, r.CredentialNotBefore, r.Message
	stored.ApprovedGatewayURL = r.ApprovedGatewayURL
	stored.UpdatedAt = r.UpdatedAt
	stored.ResourceVersion++
	return regionTable.overlayIn(t).put(stored)
}

// DeleteRegion also deletes the region's feed, grants, join tokens, stream and quarantine.
func (t *tx) DeleteRegion(id string) error {
	if _, ok := regionTable.overlayIn(t).get(id); !ok {
		return notFound("region", id)
	}
	for _, g := range grantTable.overlayIn(t).list(func(g grant) bool { return g.key.a == id }) {
		if err := grantTable.overlayIn(t).delete(g.key); err != nil {
			return err
		}
	}
	for _, j := range joinTokenTable.overlayIn(t).list(func(j model.JoinToken) bool { return j.RegionID == id }) {
		if err := joinTokenTable.overlayIn(t).delete(j.ID); err != nil {
			return err
		}
	}
	if err := t.SetQuarantine(id, nil); err != nil {
		return err
	}
	if err := streamTable.overlayIn(t).delete(id); err != nil {
		return err
	}
	if err := logTable.overlayIn(t).delete(id); err != nil {
		return err
	}
	if err := headTable.overlayIn(t).delete(id); err != nil {
		return err
	}
	return regionTable.overlayIn(t).delete(id)
}

// GrantRegion does not change an earlier grant.
func (t *tx) GrantRegion(regionID, workspaceID string, at int64) error {
	if _, err := t.GetRegion(regionID); err != nil {
		return err
	}
	key := pair{regionID, workspaceID}
	if _, ok, err := grantTable.overlayIn(t).lock(key); ok || err != nil {
		return err
	}
	return grantTable.overlayIn(t).put(grant{key: key, at: at})
}

func (t *tx) RevokeGrant(regionID, workspaceID string) error {
	key := pair{regionID, workspaceID}
	if _, ok := grantTable.overlayIn(t).get(key); !ok {
		return notFound("grant of region", regionID)
	}
	return grantTable.overlayIn(t).delete(key)
}

func (t *tx) RegionWorkspaces(regionID string) ([]string, error) {
	var ids []string
	for _, g := range grantTable.overlayIn(t).list(func(g grant) bool { return g.key.a == regionID }) {
		ids = append(ids, g.key.b)
	}
	return sortDistinct(ids), nil
}

// SetQuarantine keeps the approval and the time since of keys that stay.
func (t *tx) SetQuarantine(regionID string, rows []model.Quarantined) error {
	stay := map[string]bool{}
	for _, q := range rows {
		stay[q.Key] = true
	}
	for _, q := range t.quarantinedIn(regionID) {
		if !stay[q.Key] {
			if err := quarantineTable.overlayIn(t).delete(quarantineTable.key(q)); err != nil {
				return err
			}
		}
	}
	for _, q := range rows {
		q.RegionID = regionID
		stored, ok, err := quarantineTable.overlayIn(t).lock(quarantineTable.key(q))
		if err != nil {
			return err
		}
		if ok {
			q.ApprovedAt, q.Since = stored.ApprovedAt, stored.Since
		}
		if ok && q == stored {
			continue
		}
		if err := quarantineTable.overlayIn(t).put(q); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) quarantinedIn(regionID string) []model.Quarantined {
	rows := quarantineTable.overlayIn(t).list(func(q model.Quarantined) bool { return q.RegionID == regionID })
	slices.SortFunc(rows, func(a, b model.Quarantined) int { return cmp.Compare(a.Key, b.Key) })
	return rows
}

func (t *tx) CountQuarantine(regionIDs []string) (map[string]int, error) {
	of := setOf(regionIDs)
	counts := map[string]int{}
	for _, q := range quarantineTable.overlayIn(t).list(func(q model.Quarantined) bool { return of[q.RegionID] }) {
		counts[q.RegionID]++
	}
	return counts, nil
}

func (t *tx) ListQuarantine(regionID string, p store.Page) ([]model.Quarantined, error) {
	return pageOf(t.quarantinedIn(regionID), p, func(q model.Quarantined) string { return q.Key }), nil
}

func (t *tx) ApproveQuarantine(regionID string, keys []string, at int64) ([]model.Quarantined, error) {
	var found []model.Quarantined
	for _, key := range sortDistinct(keys) {
		q, ok, err := quarantineTable.overlayIn(t).lock(pair{regionID, key})
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		q.ApprovedAt = at
		if err := quarantineTable.overlayIn(t).put(q); err != nil {
			return nil, err
		}
		found = append(found, q)
	}
	return found, nil
}
