-- Leases use the database's clock. Connections set the time zone to UTC, where
-- UNIX_TIMESTAMP(NOW(3)) has no ambiguous hour.

-- name: StartSession :exec
-- 2 is connected.
UPDATE regions
SET session_id = ?, session_epoch = ?, session_fence = ?, session_sequence = ?, status = 2, agent_version = ?,
    agent_runtime = ?, agent_features = ?, gateway_url = ?,
    lease_expires_at = CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) + CAST(sqlc.arg(lease_ttl) AS SIGNED)
WHERE id = ?;

-- name: OverdueLeases :many
-- 2 is connected.
SELECT id FROM regions
WHERE status = 2 AND lease_expires_at < CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)
ORDER BY id LIMIT ? FOR UPDATE;

-- name: MarkUnreachable :exec
-- 3 is unreachable. The rows are locked by OverdueLeases.
UPDATE regions SET status = 3, updated_at = sqlc.arg(at) WHERE id IN (sqlc.slice(ids));

-- name: InsertJoinToken :exec
INSERT INTO join_tokens (id, region, hash, created_at, expires_at, used_at, used_by)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: GetJoinTokenByHash :one
SELECT * FROM join_tokens WHERE hash = ?;

-- name: GetJoinToken :one
SELECT * FROM join_tokens WHERE id = ?;

-- name: UseJoinToken :execrows
-- Only one agent can use a token: another agent finds no row, and the same agent finds its row again.
-- used_at keeps the time of the first use.
UPDATE join_tokens
SET used_at = IF(used_at = 0, CAST(sqlc.arg(at) AS SIGNED), used_at), used_by = sqlc.arg(used_by)
WHERE id = sqlc.arg(id) AND (used_at = 0 OR used_by = sqlc.arg(used_by));

-- name: DeleteJoinTokensOfRegion :exec
DELETE FROM join_tokens WHERE region = ?;
