-- name: GetInstance :one
SELECT * FROM instances WHERE workspace_id = ? AND id = ?;

-- name: DeploymentsWithLost :many
-- Returns the deployments with living instances that a complete inventory of the region did not contain.
SELECT DISTINCT deployment_id FROM instances
WHERE region = ? AND terminated_at = 0 AND guard_no < ?
ORDER BY deployment_id;

-- name: MarkLost :exec
-- 7 is terminated.
UPDATE instances
SET status = 7, reason = 'Lost', message = sqlc.arg(message), updated_at = sqlc.arg(at), terminated_at = sqlc.arg(at)
WHERE region = sqlc.arg(region) AND terminated_at = 0 AND guard_no < sqlc.arg(guard_no);

-- name: CountInstances :many
SELECT region, COUNT(*) AS n FROM instances
WHERE region IN (sqlc.slice(regions)) AND terminated_at = 0
GROUP BY region;

-- name: DeleteInstances :execrows
DELETE FROM instances
WHERE terminated_at > 0 AND terminated_at < sqlc.arg(terminated_before)
ORDER BY terminated_at LIMIT ?;

-- name: CountInstancesByStatus :many
-- For metrics, over all workspaces. Read rarely, and if possible from a replica of the database.
SELECT status, COUNT(*) AS n FROM instances GROUP BY status;
