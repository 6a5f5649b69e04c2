package mysql

import (
	"cmp"
	"slices"
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
)

// StartSession locks the region's row, so that the second of two concurrent agents gets the higher fence.
func (t *tx) StartSession(regionID, sessionID string, leaseTTL int64, agent model.Region) (model.Region, bool, error) {
	was, err := t.LockRegion(regionID)
	if err != nil {
		return model.Region{}, false, err
	}
	head, err := t.GetHead(regionID)
	if err != nil {
		return model.Region{}, false, err
	}
	features, err := encodeJSON(agent.AgentFeatures)
	if err != nil {
		return model.Region{}, false, t.queryError(err, "start session of region", regionID)
	}
	resumed := was.SessionID == sessionID
	fence := was.SessionFence
	sequence := was.SessionSequence
	if !resumed {
		fence++
		sequence = 0
	}
	err = t.q.StartSession(t.ctx, gen.StartSessionParams{
		SessionID: sessionID, SessionEpoch: head.Epoch, SessionFence: fence, SessionSequence: sequence,
		AgentVersion: clipText(agent.AgentVersion, maxReason), AgentRuntime: clipText(agent.AgentRuntime, 64), AgentFeatures: features,
		GatewayUrl: clipText(agent.GatewayURL, maxGatewayURL), LeaseTtl: leaseTTL, ID: regionID,
	})
	if err != nil {
		return model.Region{}, false, t.queryError(err, "start session of region", regionID)
	}
	r, err := t.GetRegion(regionID)
	return r, resumed, err
}

// CheckSessions reads the primary, because a session that is missing in a replica would be refused.
func (t *tx) CheckSessions(regionIDs []string) ([]model.Region, error) {
	return list(t, "check sessions", "", regionFromRow)(inChunks(sortDistinct(regionIDs), func(ids []string) ([]gen.Region, error) {
		return t.primary.GetRegions(t.ctx, ids)
	}))
}

// maxGatewayURL is the column's width.
const maxGatewayURL = 512

// noteRow is one row of the list of values in NoteReports. The id is converted to the column's character
// set, because otherwise the join could not use the column's index.
const (
	noteRow     = "SELECT CONVERT(? USING ascii) COLLATE ascii_bin AS id, ? AS session_id, ? AS epoch, ? AS fence, ? AS sequence, ? AS received, ? AS at"
	capacityRow = ", ? AS changed, ? AS capacity"
)

// NoteReports is one UPDATE joined with a list of values, because an upsert would restore a region that was
// deleted meanwhile. A session that still reports after its lease ended is connected again.
//
// MariaDB writes a list with a blob to a temporary file. So capacity, which rarely changes, is in the list
// only when it changes.
func (t *tx) NoteReports(regions []model.Region, leaseTTL int64) error {
	if len(regions) == 0 {
		return nil
	}
	regions = slices.Clone(regions)
	slices.SortFunc(regions, func(a, b model.Region) int { return cmp.Compare(a.ID, b.ID) })
	row, set := noteRow, ""
	capacities := slices.ContainsFunc(regions, func(r model.Region) bool { return r.Capacity != nil })
	if capacities {
		row += capacityRow
		set = "\n    r.capacity = IF(v.changed AND v.sequence >= r.session_sequence, v.capacity, r.capacity),"
	}
	rows := make([]string, len(regions))
	args := make([]any, 0, 9*len(regions)+1)
	for i, r := range regions {
		rows[i] = row
		args = append(args, r.ID, r.SessionID, r.SessionEpoch, r.SessionFence, r.SessionSequence, r.ReceivedRevision, r.LastReportAt)
		if capacities {
			args = append(args, r.Capacity != nil, notNull(r.Capacity))
		}
	}
	q := `-- name: NoteReports :exec
UPDATE regions r JOIN (` + strings.Join(rows, " UNION ALL ") + `) v
    ON v.id = r.id AND v.session_id = r.session_id AND v.epoch = r.session_epoch AND v.fence = r.session_fence
SET r.session_sequence = GREATEST(r.session_sequence, v.sequence), r.last_report_at = v.at,
    r.received_revision = IF(v.sequence >= r.session_sequence, v.received, r.received_revision),` + set + `
    r.status = 2, r.lease_expires_at = CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) + ?`
	_, err := t.db.ExecContext(t.ctx, q, append(args, leaseTTL)...)
	return t.queryError(err, "note reports of region", regions[0].ID)
}

func (t *tx) ExpireLeases(now int64, n int) ([]string, error) {
	if err := t.requireUpdate("expire leases", ""); err != nil {
		return nil, err
	}
	ids, err := t.q.OverdueLeases(t.ctx, limitOrAll(n))
	if err != nil || len(ids) == 0 {
		return nil, t.queryError(err, "find overdue leases", "")
	}
	err = t.q.MarkUnreachable(t.ctx, gen.MarkUnreachableParams{At: now, Ids: ids})
	return ids, t.queryError(err, "mark region unreachable", ids[0])
}

func (t *tx) InsertJoinToken(j model.JoinToken) error {
	return t.queryError(t.q.InsertJoinToken(t.ctx, gen.InsertJoinTokenParams{
		ID: j.ID, Region: j.RegionID, Hash: notNull(j.Hash), CreatedAt: j.CreatedAt, ExpiresAt: j.ExpiresAt,
		UsedAt: j.UsedAt, UsedBy: j.UsedBy,
	}), "insert join token", j.ID)
}

func joinToken(r gen.JoinToken) (model.JoinToken, error) {
	return model.JoinToken{
		ID: r.ID, RegionID: r.Region, Hash: blobOrNil(r.Hash), CreatedAt: r.CreatedAt, ExpiresAt: r.ExpiresAt,
		UsedAt: r.UsedAt, UsedBy: r.UsedBy,
	}, nil
}

func (t *tx) GetJoinTokenByHash(hash []byte) (model.JoinToken, error) {
	return get(t, "get join token", "by hash", joinToken)(t.primary.GetJoinTokenByHash(t.ctx, hash))
}

func (t *tx) UseJoinToken(id, joinID string, at int64) error {
	n, err := t.q.UseJoinToken(t.ctx, gen.UseJoinTokenParams{At: at, UsedBy: joinID, ID: id})
	return t.requireSwapped(n, err, func() error {
		_, err := t.primary.GetJoinToken(t.ctx, id)
		return t.queryError(err, "use join token", id)
	}, "use join token", id)
}

func quarantinedFromRow(r gen.RegionQuarantine) (model.Quarantined, error) {
	return model.Quarantined{
		RegionID: r.Region, Key: r.WorkloadKey, Generation: r.Generation, Instances: r.Instances,
		Since: r.Since, ApprovedAt: r.ApprovedAt,
	}, nil
}

// putQuarantine does not assign since and approved_at of an existing key. The key stays in quarantine since the time
// at which it was first seen in the region.
var putQuarantine = insertInto("PutQuarantine", "region_quarantine",
	"region", "workload_key", "generation", "instances", "since", "approved_at").replacingColumns("generation", "instances")

func (t *tx) SetQuarantine(regionID string, rows []model.Quarantined) error {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b model.Quarantined) int { return cmp.Compare(a.Key, b.Key) })
	if err := t.requireUpdate("set quarantine of region", regionID); err != nil {
		return err
	}
	stored, err := t.q.LockQuarantine(t.ctx, regionID)
	if err != nil {
		return t.queryError(err, "lock quarantine of region", regionID)
	}
	keep := make(map[string]bool, len(rows))
	for _, r := range rows {
		keep[r.Key] = true
	}
	var gone []string
	for _, r := range stored {
		if !keep[r.WorkloadKey] {
			gone = append(gone, r.WorkloadKey)
		}
	}
	for part := range slices.Chunk(gone, inChunk) {
		if err := t.q.DeleteQuarantined(t.ctx, gen.DeleteQuarantinedParams{Region: regionID, WorkloadKeys: part}); err != nil {
			return t.queryError(err, "release quarantine of region", regionID)
		}
	}
	return t.queryError(runBulk(t, t.db, putQuarantine, rows, func(args []any, r model.Quarantined) []any {
		return append(args, regionID, r.Key, r.Generation, r.Instances, r.Since, r.ApprovedAt)
	}), "set quarantine of region", regionID)
}

func (t *tx) CountQuarantine(regionIDs []string) (map[string]int, error) {
	counts := map[string]int{}
	rows, err := inChunks(sortDistinct(regionIDs), func(ids []string) ([]gen.CountQuarantineRow, error) {
		return t.q.CountQuarantine(t.ctx, ids)
	})
	for _, r := range rows {
		counts[r.Region] = int(r.N)
	}
	return counts, t.queryError(err, "count quarantine", "")
}

func (t *tx) ListQuarantine(regionID string, p store.Page) ([]model.Quarantined, error) {
	return list(t, "list quarantine of region", regionID, quarantinedFromRow)(t.q.ListQuarantine(t.ctx, gen.ListQuarantineParams{
		Region: regionID, After: p.After, Limit: limitOrAll(p.Limit),
	}))
}

func (t *tx) ApproveQuarantine(regionID string, keys []string, at int64) ([]model.Quarantined, error) {
	var found []gen.RegionQuarantine
	for part := range slices.Chunk(sortDistinct(keys), inChunk) {
		if err := t.q.ApproveQuarantine(t.ctx, gen.ApproveQuarantineParams{At: at, Region: regionID, WorkloadKeys: part}); err != nil {
			return nil, t.queryError(err, "approve quarantine of region", regionID)
		}
		rows, err := t.q.GetQuarantined(t.ctx, gen.GetQuarantinedParams{Region: regionID, WorkloadKeys: part})
		if err != nil {
			return nil, t.queryError(err, "approve quarantine of region", regionID)
		}
		found = append(found, rows...)
	}
	return list(t, "approve quarantine of region", regionID, quarantinedFromRow)(found, nil)
}
