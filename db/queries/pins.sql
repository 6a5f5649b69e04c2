-- name: ListPins :many
SELECT * FROM app_pins WHERE app_id IN (sqlc.slice(app_ids)) ORDER BY app_id, version;

-- name: PutPin :exec
-- The caller has locked the app's row, so no other write comes in between.
REPLACE INTO app_pins (
    app_id, deployment_id, workspace_id, version, weight, removing, pinned_by, why, regions, created_at, updated_at, resource_version
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: DeletePin :exec
DELETE FROM app_pins WHERE app_id = ? AND deployment_id = ?;

-- name: DeletePinsOfApps :exec
DELETE FROM app_pins WHERE app_id IN (sqlc.slice(app_ids));
