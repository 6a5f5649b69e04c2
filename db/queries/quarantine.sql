-- name: LockQuarantine :many
SELECT * FROM region_quarantine WHERE region = ? ORDER BY workload_key FOR UPDATE;

-- name: CountQuarantine :many
SELECT region, COUNT(*) AS n FROM region_quarantine WHERE region IN (sqlc.slice(regions)) GROUP BY region;

-- name: ListQuarantine :many
SELECT * FROM region_quarantine
WHERE region = ? AND workload_key > sqlc.arg(after)
ORDER BY workload_key LIMIT ?;

-- name: DeleteQuarantined :exec
DELETE FROM region_quarantine WHERE region = ? AND workload_key IN (sqlc.slice(workload_keys));

-- name: ApproveQuarantine :exec
UPDATE region_quarantine SET approved_at = sqlc.arg(at)
WHERE region = sqlc.arg(region) AND workload_key IN (sqlc.slice(workload_keys));

-- name: GetQuarantined :many
SELECT * FROM region_quarantine
WHERE region = ? AND workload_key IN (sqlc.slice(workload_keys))
ORDER BY workload_key;

-- name: ApprovedQuarantine :many
SELECT * FROM region_quarantine WHERE region IN (sqlc.slice(regions)) AND approved_at > 0 ORDER BY region, workload_key;

-- name: DeleteQuarantineOfRegion :exec
DELETE FROM region_quarantine WHERE region = ?;
