package memory

import (
	"cmp"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

func (t *tx) InsertRegion(r model.Region) error {
	if err := t.regions.insert(r); err != nil {
		return err
	}
	h := head{
		Head:      model.Head{RegionID: r.ID, Epoch: 1, Chain: changefeed.Genesis()},
		baseChain: changefeed.Genesis(),
	}
	if err := t.heads.insert(h); err != nil {
		return err
	}
	return t.logs.insert(logRow{region: r.ID})
}

func (t *tx) GetRegion(id string) (model.Region, error) {
	r, ok := t.regions.get(id)
	return one(r, ok, "region", id)
}

func (t *tx) LockRegion(id string) (model.Region, error) {
	r, ok, err := t.regions.lock(id)
	if err != nil {
		return model.Region{}, err
	}
	return one(r, ok, "region", id)
}

func (t *tx) GetRegions(ids []string) ([]model.Region, error) {
	var rows []model.Region
	for _, id := range distinct(ids) {
		if r, ok := t.regions.get(id); ok {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// GetRegionByName: what the workspace owns hides what it was granted under the
// same name.
func (t *tx) GetRegionsByName(workspaceID string, names []string) ([]model.Region, error) {
	var rows []model.Region
	for _, name := range distinct(names) {
		if r, err := t.GetRegionByName(workspaceID, name); err == nil {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

func (t *tx) GetRegionByName(workspaceID, name string) (model.Region, error) {
	if r, ok := t.regions.find(0, workspaceID+"\x00"+name); ok {
		return r, nil
	}
	r, ok := t.regions.find(0, "\x00"+name)
	if ok {
		_, ok = t.grants.get(pair{r.ID, workspaceID})
	}
	return one(r, ok, "region", name)
}

func (t *tx) ListGateways(waiting bool, p store.Page) ([]model.Region, error) {
	rows := t.regions.list(func(r model.Region) bool {
		return r.WorkspaceID != "" && r.GatewayURL != "" && (!waiting || !r.GatewayApproved())
	})
	return page(rows, p, func(r model.Region) string { return r.ID }), nil
}

func (t *tx) ListRegions(workspaceID string, p store.Page) ([]model.Region, error) {
	owned := map[string]bool{}
	rows := t.regions.list(func(r model.Region) bool { return r.WorkspaceID == workspaceID })
	for _, r := range rows {
		owned[r.Name] = true
	}
	if workspaceID != "" {
		granted := map[string]bool{}
		for _, g := range t.grants.list(func(g grant) bool { return g.key.b == workspaceID }) {
			granted[g.key.a] = true
		}
		rows = append(rows, t.regions.list(func(r model.Region) bool {
			return r.WorkspaceID == "" && granted[r.ID] && !owned[r.Name]
		})...)
	}
	return page(rows, p, func(r model.Region) string { return r.Name }), nil
}

func (t *tx) RegionsOf(workspaceIDs []string) ([]model.WorkspaceRegion, error) {
	of := set(workspaceIDs)
	var out []model.WorkspaceRegion
	for _, r := range t.regions.list(func(r model.Region) bool { return r.WorkspaceID != "" && of[r.WorkspaceID] }) {
		out = append(out, model.WorkspaceRegion{WorkspaceID: r.WorkspaceID, RegionID: r.ID, RegionName: r.Name})
	}
	for _, g := range t.grants.list(func(g grant) bool { return of[g.key.b] }) {
		if r, ok := t.regions.get(g.key.a); ok && r.WorkspaceID == "" {
			out = append(out, model.WorkspaceRegion{WorkspaceID: g.key.b, RegionID: r.ID, RegionName: r.Name, Platform: true})
		}
	}
	slices.SortFunc(out, func(a, b model.WorkspaceRegion) int {
		return cmp.Or(cmp.Compare(a.WorkspaceID, b.WorkspaceID), cmp.Compare(a.RegionID, b.RegionID))
	})
	return out, nil
}

func (t *tx) AllRegions(p store.Page) ([]model.Region, error) {
	rows := t.regions.list(func(model.Region) bool { return true })
	return page(rows, p, func(r model.Region) string { return r.ID }), nil
}

func (t *tx) UpdateRegion(r model.Region) error {
	stored, ok, err := t.regions.lock(r.ID)
	switch {
	case err != nil:
		return err
	case !ok:
		return notFound("region", r.ID)
	case stored.ResourceVersion != r.ResourceVersion:
		return conflict("region", r.ID)
	}
	stored.Labels, stored.CredentialNotBefore, stored.Message = r.Labels, r.CredentialNotBefore, r.Message
	stored.ApprovedGatewayURL = r.ApprovedGatewayURL
	stored.UpdatedAt = r.UpdatedAt
	stored.ResourceVersion++
	return t.regions.put(stored)
}

// DeleteRegion takes the region's feed, grants, join tokens, stream and quarantine
// with it.
func (t *tx) DeleteRegion(id string) error {
	if _, ok := t.regions.get(id); !ok {
		return notFound("region", id)
	}
	for _, g := range t.grants.list(func(g grant) bool { return g.key.a == id }) {
		if err := t.grants.delete(g.key); err != nil {
			return err
		}
	}
	for _, j := range t.joinTokens.list(func(j model.JoinToken) bool { return j.RegionID == id }) {
		if err := t.joinTokens.delete(j.ID); err != nil {
			return err
		}
	}
	if err := t.SetQuarantine(id, nil); err != nil {
		return err
	}
	if err := t.streams.delete(id); err != nil {
		return err
	}
	if err := t.logs.delete(id); err != nil {
		return err
	}
	if err := t.heads.delete(id); err != nil {
		return err
	}
	return t.regions.delete(id)
}

// GrantRegion leaves an earlier grant as it stands.
func (t *tx) GrantRegion(regionID, workspaceID string, at int64) error {
	if _, err := t.GetRegion(regionID); err != nil {
		return err
	}
	key := pair{regionID, workspaceID}
	if _, ok, err := t.grants.lock(key); ok || err != nil {
		return err
	}
	return t.grants.put(grant{key: key, at: at})
}

func (t *tx) RevokeGrant(regionID, workspaceID string) error {
	key := pair{regionID, workspaceID}
	if _, ok := t.grants.get(key); !ok {
		return notFound("grant of region", regionID)
	}
	return t.grants.delete(key)
}

func (t *tx) RegionWorkspaces(regionID string) ([]string, error) {
	var ids []string
	for _, g := range t.grants.list(func(g grant) bool { return g.key.a == regionID }) {
		ids = append(ids, g.key.b)
	}
	return distinct(ids), nil
}

// SetQuarantine keeps, of keys that stay, the approval and since when they are
// there.
func (t *tx) SetQuarantine(regionID string, rows []model.Quarantined) error {
	stay := map[string]bool{}
	for _, q := range rows {
		stay[q.Key] = true
	}
	for _, q := range t.quarantined(regionID) {
		if !stay[q.Key] {
			if err := t.quarantine.delete(quarantineSchema.key(q)); err != nil {
				return err
			}
		}
	}
	for _, q := range rows {
		q.RegionID = regionID
		stored, ok, err := t.quarantine.lock(quarantineSchema.key(q))
		if err != nil {
			return err
		}
		if ok {
			q.ApprovedAt, q.Since = stored.ApprovedAt, stored.Since
		}
		if ok && q == stored {
			continue
		}
		if err := t.quarantine.put(q); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) quarantined(regionID string) []model.Quarantined {
	rows := t.quarantine.list(func(q model.Quarantined) bool { return q.RegionID == regionID })
	slices.SortFunc(rows, func(a, b model.Quarantined) int { return cmp.Compare(a.Key, b.Key) })
	return rows
}

func (t *tx) ListQuarantine(regionID string, p store.Page) ([]model.Quarantined, error) {
	return page(t.quarantined(regionID), p, func(q model.Quarantined) string { return q.Key }), nil
}

func (t *tx) ApproveQuarantine(regionID string, keys []string, at int64) ([]model.Quarantined, error) {
	var found []model.Quarantined
	for _, key := range distinct(keys) {
		q, ok, err := t.quarantine.lock(pair{regionID, key})
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		q.ApprovedAt = at
		if err := t.quarantine.put(q); err != nil {
			return nil, err
		}
		found = append(found, q)
	}
	return found, nil
}
