-- name: InsertRegion :exec
INSERT INTO regions (
    id, workspace_id, name, labels, status, message, session_id, session_epoch, session_fence, session_sequence,
    lease_expires_at, agent_version, agent_runtime, agent_features, received_revision,
    last_report_at, capacity, credential_not_before, created_at, updated_at, resource_version, gateway_url, approved_gateway_url
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: GetRegion :one
SELECT * FROM regions WHERE id = ?;

-- name: LockRegion :one
SELECT * FROM regions WHERE id = ? FOR UPDATE;

-- name: GetRegions :many
SELECT * FROM regions WHERE id IN (sqlc.slice(ids)) ORDER BY id;

-- name: GetRegionByName :one
-- A region that the workspace owns hides a granted region with the same name.
SELECT r.* FROM regions r
WHERE r.name = sqlc.arg(name) AND (r.workspace_id = sqlc.arg(workspace_id) OR (r.workspace_id = '' AND EXISTS (
    SELECT 1 FROM region_grants g WHERE g.region = r.id AND g.workspace_id = sqlc.arg(workspace_id))))
ORDER BY r.workspace_id DESC LIMIT 1;

-- name: GetRegionsByName :many
-- A region that the workspace owns comes before a granted region with the same name.
SELECT r.* FROM regions r
WHERE r.name IN (sqlc.slice(names)) AND (r.workspace_id = sqlc.arg(workspace_id) OR (r.workspace_id = '' AND EXISTS (
    SELECT 1 FROM region_grants g WHERE g.region = r.id AND g.workspace_id = sqlc.arg(workspace_id))))
ORDER BY r.name, r.workspace_id DESC;

-- name: ListPlatformRegions :many
SELECT * FROM regions WHERE workspace_id = '' AND name > sqlc.arg(after) ORDER BY name LIMIT ?;

-- name: ListRegions :many
SELECT r.* FROM regions r
WHERE r.name > sqlc.arg(after) AND (r.workspace_id = sqlc.arg(workspace_id) OR (r.workspace_id = '' AND EXISTS (
    SELECT 1 FROM region_grants g WHERE g.region = r.id AND g.workspace_id = sqlc.arg(workspace_id)
) AND NOT EXISTS (
    SELECT 1 FROM regions o WHERE o.workspace_id = sqlc.arg(workspace_id) AND o.name = r.name)))
ORDER BY r.name LIMIT ?;

-- name: RegionsOwnedBy :many
SELECT workspace_id, id, name FROM regions WHERE workspace_id IN (sqlc.slice(workspace_ids));

-- name: RegionsGrantedTo :many
SELECT g.workspace_id, r.id, r.name FROM region_grants g JOIN regions r ON r.id = g.region AND r.workspace_id = ''
WHERE g.workspace_id IN (sqlc.slice(workspace_ids));

-- name: AllRegions :many
SELECT * FROM regions WHERE id > sqlc.arg(after) ORDER BY id LIMIT ?;

-- name: UpdateRegion :execrows
UPDATE regions
SET labels = ?, credential_not_before = ?, message = ?, approved_gateway_url = ?, updated_at = ?, resource_version = resource_version + 1
WHERE id = ? AND resource_version = ?;

-- name: DeleteRegion :execrows
DELETE FROM regions WHERE id = ?;

-- name: InsertGrant :exec
INSERT INTO region_grants (region, workspace_id, created_at) VALUES (?, ?, ?)
ON DUPLICATE KEY UPDATE created_at = created_at;

-- name: DeleteGrant :execrows
DELETE FROM region_grants WHERE region = ? AND workspace_id = ?;

-- name: DeleteGrantsOfRegion :exec
DELETE FROM region_grants WHERE region = ?;

-- name: RegionWorkspaces :many
SELECT workspace_id FROM region_grants WHERE region = ? ORDER BY workspace_id;

-- name: ListGateways :many
-- Reads all regions, which is acceptable because only operators call it, and rarely.
SELECT * FROM regions
WHERE id > sqlc.arg(after) AND workspace_id <> '' AND gateway_url <> ''
  AND (sqlc.arg(waiting) = 0 OR gateway_url <> approved_gateway_url)
ORDER BY id LIMIT ?;

-- name: CountRegions :many
-- For metrics, over all workspaces. Reads only the index by lease.
SELECT status, COUNT(*) AS row_count FROM regions GROUP BY status;
