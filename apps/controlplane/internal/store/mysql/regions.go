package mysql

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func regionFromRow(r gen.Region) (model.Region, error) {
	m := model.Region{
		ID: r.ID, WorkspaceID: r.WorkspaceID, Name: r.Name, Status: windlassv1.RegionStatus(r.Status), Message: r.Message,
		SessionID: r.SessionID, SessionEpoch: r.SessionEpoch, SessionFence: r.SessionFence, SessionSequence: r.SessionSequence, LeaseExpiresAt: r.LeaseExpiresAt,
		AgentVersion: r.AgentVersion, AgentRuntime: r.AgentRuntime, GatewayURL: r.GatewayUrl, ApprovedGatewayURL: r.ApprovedGatewayUrl, ReceivedRevision: r.ReceivedRevision,
		LastReportAt: r.LastReportAt, Capacity: blobOrNil(r.Capacity), CredentialNotBefore: r.CredentialNotBefore,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, ResourceVersion: r.ResourceVersion,
	}
	if err := decodeJSON(r.Labels, &m.Labels); err != nil {
		return m, err
	}
	return m, decodeJSON(r.AgentFeatures, &m.AgentFeatures)
}

// InsertRegion also inserts the head of the region's feed.
func (t *tx) InsertRegion(r model.Region) error {
	labels, err := encodeJSON(r.Labels)
	if err != nil {
		return t.queryError(err, "insert region", r.ID)
	}
	features, err := encodeJSON(r.AgentFeatures)
	if err != nil {
		return t.queryError(err, "insert region", r.ID)
	}
	err = t.q.InsertRegion(t.ctx, gen.InsertRegionParams{
		ID: r.ID, WorkspaceID: r.WorkspaceID, Name: r.Name, Labels: labels, Status: int32(r.Status), Message: clipText(r.Message, maxMessage),
		SessionID: r.SessionID, SessionEpoch: r.SessionEpoch, SessionFence: r.SessionFence, SessionSequence: r.SessionSequence, LeaseExpiresAt: r.LeaseExpiresAt,
		AgentVersion: r.AgentVersion, AgentRuntime: r.AgentRuntime, AgentFeatures: features, ReceivedRevision: r.ReceivedRevision,
		LastReportAt: r.LastReportAt, Capacity: notNull(r.Capacity), CredentialNotBefore: r.CredentialNotBefore,
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, ResourceVersion: r.ResourceVersion, GatewayUrl: clipText(r.GatewayURL, maxGatewayURL), ApprovedGatewayUrl: clipText(r.ApprovedGatewayURL, maxGatewayURL),
	})
	if err != nil {
		return t.queryError(err, "insert region", r.ID)
	}
	return t.queryError(t.q.InsertHead(t.ctx, gen.InsertHeadParams{
		Region: r.ID, Epoch: 1, Chain: changefeed.Genesis(), BaseChain: changefeed.Genesis(),
	}), "insert head of region", r.ID)
}

func (t *tx) CountRegions() (map[windlassv1.RegionStatus]int, error) {
	counts := map[windlassv1.RegionStatus]int{}
	rows, err := t.q.CountRegions(t.ctx)
	for _, r := range rows {
		counts[windlassv1.RegionStatus(r.Status)] = int(r.RowCount)
	}
	return counts, t.queryError(err, "count regions", "")
}

func (t *tx) GetRegion(id string) (model.Region, error) {
	return get(t, "get region", id, regionFromRow)(t.q.GetRegion(t.ctx, id))
}

func (t *tx) LockRegion(id string) (model.Region, error) {
	if err := t.requireUpdate("lock region", id); err != nil {
		return model.Region{}, err
	}
	return get(t, "lock region", id, regionFromRow)(t.q.LockRegion(t.ctx, id))
}

func (t *tx) GetRegions(ids []string) ([]model.Region, error) {
	ids = sortDistinct(ids)
	return onceList(t, "GetRegions "+strings.Join(ids, " "), func() ([]model.Region, error) {
		return list(t, "get regions", "", regionFromRow)(inChunks(ids, func(ids []string) ([]gen.Region, error) {
			return t.q.GetRegions(t.ctx, ids)
		}))
	})
}

func (t *tx) GetRegionsByName(workspaceID string, names []string) ([]model.Region, error) {
	rows, err := list(t, "get regions by name", "", regionFromRow)(inChunks(sortDistinct(names), func(names []string) ([]gen.Region, error) {
		return t.q.GetRegionsByName(t.ctx, gen.GetRegionsByNameParams{Names: names, WorkspaceID: workspaceID})
	}))
	return slices.CompactFunc(rows, func(a, b model.Region) bool { return a.Name == b.Name }), err
}

func (t *tx) GetRegionByName(workspaceID, name string) (model.Region, error) {
	return get(t, "get region", name, regionFromRow)(
		t.q.GetRegionByName(t.ctx, gen.GetRegionByNameParams{Name: name, WorkspaceID: workspaceID}))
}

func (t *tx) ListRegions(workspaceID string, p store.Page) ([]model.Region, error) {
	if workspaceID == "" {
		return list(t, "list regions", "", regionFromRow)(t.q.ListPlatformRegions(t.ctx, gen.ListPlatformRegionsParams{
			After: p.After, Limit: limitOrAll(p.Limit),
		}))
	}
	return onceList(t, fmt.Sprintf("ListRegions %s %s %d", workspaceID, p.After, p.Limit), func() ([]model.Region, error) {
		return list(t, "list regions of", workspaceID, regionFromRow)(t.q.ListRegions(t.ctx, gen.ListRegionsParams{
			After: p.After, WorkspaceID: workspaceID, Limit: limitOrAll(p.Limit),
		}))
	})
}

func (t *tx) ListGateways(waiting bool, p store.Page) ([]model.Region, error) {
	var only int64
	if waiting {
		only = 1
	}
	return list(t, "list gateways", "", regionFromRow)(t.q.ListGateways(t.ctx, gen.ListGatewaysParams{After: p.After, Waiting: only, Limit: limitOrAll(p.Limit)}))
}

func (t *tx) RegionsOf(workspaceIDs []string) ([]model.WorkspaceRegion, error) {
	ids := sortDistinct(workspaceIDs)
	own, err := list(t, "list regions of workspaces", "", func(r gen.RegionsOwnedByRow) (model.WorkspaceRegion, error) {
		return model.WorkspaceRegion{WorkspaceID: r.WorkspaceID, RegionID: r.ID, RegionName: r.Name}, nil
	})(inChunks(ids, func(ids []string) ([]gen.RegionsOwnedByRow, error) { return t.q.RegionsOwnedBy(t.ctx, ids) }))
	if err != nil {
		return nil, err
	}
	granted, err := list(t, "list regions granted to workspaces", "", func(r gen.RegionsGrantedToRow) (model.WorkspaceRegion, error) {
		return model.WorkspaceRegion{WorkspaceID: r.WorkspaceID, RegionID: r.ID, RegionName: r.Name, Platform: true}, nil
	})(inChunks(ids, func(ids []string) ([]gen.RegionsGrantedToRow, error) { return t.q.RegionsGrantedTo(t.ctx, ids) }))
	out := slices.Concat(own, granted)
	slices.SortFunc(out, func(a, b model.WorkspaceRegion) int {
		return cmp.Or(cmp.Compare(a.WorkspaceID, b.WorkspaceID), cmp.Compare(a.RegionID, b.RegionID))
	})
	return out, err
}

func (t *tx) AllRegions(p store.Page) ([]model.Region, error) {
	return list(t, "list all regions", "", regionFromRow)(t.primary.AllRegions(t.ctx, gen.AllRegionsParams{
		After: p.After, Limit: limitOrAll(p.Limit),
	}))
}

func (t *tx) UpdateRegion(r model.Region) error {
	labels, err := encodeJSON(r.Labels)
	if err != nil {
		return t.queryError(err, "update region", r.ID)
	}
	n, err := t.q.UpdateRegion(t.ctx, gen.UpdateRegionParams{
		Labels: labels, CredentialNotBefore: r.CredentialNotBefore, Message: clipText(r.Message, maxMessage), ApprovedGatewayUrl: clipText(r.ApprovedGatewayURL, maxGatewayURL), UpdatedAt: r.UpdatedAt,
		ID: r.ID, ResourceVersion: r.ResourceVersion,
	})
	return t.requireSwapped(n, err, func() error { _, err := t.GetRegion(r.ID); return err }, "update region", r.ID)
}

// DeleteRegion also deletes all of the region's own rows. The caller must check that nothing should run
// there.
func (t *tx) DeleteRegion(id string) error {
	n, err := t.q.DeleteRegion(t.ctx, id)
	if err := t.requireFound(n, err, "delete region", id); err != nil {
		return err
	}
	for _, forget := range []func() error{
		func() error { return t.q.DeleteGrantsOfRegion(t.ctx, id) },
		func() error { return t.q.DeleteJoinTokensOfRegion(t.ctx, id) },
		func() error { return t.q.DeleteQuarantineOfRegion(t.ctx, id) },
		func() error { return t.q.DeleteStream(t.ctx, id) },
		func() error { return t.q.DeleteHead(t.ctx, id) },
		func() error { return t.q.DeleteChangesOfRegion(t.ctx, id) },
	} {
		if err := forget(); err != nil {
			return t.queryError(err, "delete region", id)
		}
	}
	return nil
}

// GrantRegion does not change an earlier grant.
func (t *tx) GrantRegion(regionID, workspaceID string, at int64) error {
	if _, err := t.GetRegion(regionID); err != nil {
		return err
	}
	return t.queryError(t.q.InsertGrant(t.ctx, gen.InsertGrantParams{
		Region: regionID, WorkspaceID: workspaceID, CreatedAt: at,
	}), "grant region", regionID)
}

func (t *tx) RevokeGrant(regionID, workspaceID string) error {
	n, err := t.q.DeleteGrant(t.ctx, gen.DeleteGrantParams{Region: regionID, WorkspaceID: workspaceID})
	return t.requireFound(n, err, "revoke grant of region", regionID)
}

func (t *tx) RegionWorkspaces(regionID string) ([]string, error) {
	ids, err := t.q.RegionWorkspaces(t.ctx, regionID)
	return ids, t.queryError(err, "list grants of region", regionID)
}
