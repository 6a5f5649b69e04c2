package memory

import (
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	connected   = windlassv1.RegionStatus_REGION_STATUS_CONNECTED
	unreachable = windlassv1.RegionStatus_REGION_STATUS_UNREACHABLE
)

func (t *tx) StartSession(regionID, sessionID string, leaseTTL int64, agent model.Region) (model.Region, bool, error) {
	r, err := t.LockRegion(regionID)
	if err != nil {
		return model.Region{}, false, err
	}
	h, err := t.GetHead(regionID)
	if err != nil {
		return model.Region{}, false, err
	}
	resumed := r.SessionID == sessionID
	if !resumed {
		r.SessionFence++
		r.SessionSequence = 0
	}
	r.SessionID, r.SessionEpoch = sessionID, h.Epoch
	r.Status, r.LeaseExpiresAt = connected, t.store.now()+leaseTTL
	r.AgentVersion, r.AgentRuntime, r.AgentFeatures = agent.AgentVersion, agent.AgentRuntime, slices.Clone(agent.AgentFeatures)
	r.GatewayURL = agent.GatewayURL
	return r, resumed, regionTable.overlayIn(t).put(r)
}

func (t *tx) CheckSessions(regionIDs []string) ([]model.Region, error) {
	return t.GetRegions(regionIDs)
}

// NoteReports makes an unreachable region connected again, because its agent has just reported in the
// region's session.
func (t *tx) NoteReports(reports []model.Region, leaseTTL int64) error {
	for _, report := range reports {
		r, ok, err := regionTable.overlayIn(t).lock(report.ID)
		if err != nil {
			return err
		}
		if !ok || !r.InSession(report) {
			continue
		}
		r.LastReportAt = report.LastReportAt
		if report.SessionSequence >= r.SessionSequence {
			r.SessionSequence, r.ReceivedRevision = report.SessionSequence, report.ReceivedRevision
			if report.Capacity != nil {
				r.Capacity = report.Capacity
			}
		}
		r.Status, r.LeaseExpiresAt = connected, t.store.now()+leaseTTL
		if err := regionTable.overlayIn(t).put(r); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) ExpireLeases(now int64, limit int) ([]string, error) {
	clock := t.store.now()
	rows, err := regionTable.overlayIn(t).lockList(func(r model.Region) bool { return r.Status == connected && r.LeaseExpiresAt < clock })
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, r := range pageOf(rows, store.Page{Limit: limit}, func(r model.Region) string { return r.ID }) {
		r.Status, r.UpdatedAt = unreachable, now
		if err := regionTable.overlayIn(t).put(r); err != nil {
			return nil, err
		}
		ids = append(ids, r.ID)
	}
	return ids, nil
}

func (t *tx) InsertJoinToken(j model.JoinToken) error { return joinTokenTable.overlayIn(t).insert(j) }

func (t *tx) GetJoinTokenByHash(hash []byte) (model.JoinToken, error) {
	j, ok := joinTokenTable.overlayIn(t).find(0, string(hash))
	return oneRow(j, ok, "join token", "by hash")
}

func (t *tx) UseJoinToken(id, joinID string, at int64) error {
	j, ok, err := joinTokenTable.overlayIn(t).lock(id)
	switch {
	case err != nil:
		return err
	case !ok:
		return notFound("join token", id)
	case j.UsedAt == 0:
		j.UsedAt, j.UsedBy = at, joinID
		return joinTokenTable.overlayIn(t).put(j)
	case j.UsedBy != joinID:
		return conflictError("join token", id)
	}
	return nil
}
