-- name: ListObservedOfApps :many
SELECT * FROM deployment_observed
WHERE app_id IN (sqlc.slice(app_ids))
ORDER BY deployment_id, region;

-- name: GetObserved :many
SELECT * FROM deployment_observed
WHERE deployment_id IN (sqlc.slice(deployment_ids)) AND region IN (sqlc.slice(regions))
ORDER BY deployment_id, region;

-- name: ListRouteObservedOfApps :many
SELECT * FROM route_observed
WHERE app_id IN (sqlc.slice(app_ids))
ORDER BY app_id, region;

-- name: LockStaleObserved :many
-- Rows of the region that a complete inventory did not contain.
SELECT deployment_id, app_id FROM deployment_observed
WHERE region = ? AND guard_no < ?
ORDER BY deployment_id FOR UPDATE;

-- name: ResetObserved :exec
-- 1 is pending. The rows are locked by LockStaleObserved.
UPDATE deployment_observed
SET pending = 0, running = 0, ready = 0, draining = 0, failed = 0, ready_replicas = 0, doomed = 0, role_counts = '',
    phase = 1, deleted = FALSE, updated_at = sqlc.arg(at)
WHERE region = sqlc.arg(region) AND guard_no < sqlc.arg(guard_no);
