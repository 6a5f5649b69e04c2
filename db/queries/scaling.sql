-- name: GetScalings :many
SELECT * FROM app_scaling WHERE app_id IN (sqlc.slice(app_ids));

-- name: PutScaling :exec
-- The caller has locked the app's row, so no other write comes in between.
REPLACE INTO app_scaling (app_id, workspace_id, policy, holds, updated_at) VALUES (?, ?, ?, ?, ?);

-- name: DeleteScalingsOfApps :exec
DELETE FROM app_scaling WHERE app_id IN (sqlc.slice(app_ids));

-- name: ListScalingDecisions :many
SELECT * FROM scaling_decisions WHERE app_id = ? ORDER BY region;

-- name: PutScalingDecision :exec
REPLACE INTO scaling_decisions (app_id, region, workspace_id, decision, decided_at) VALUES (?, ?, ?, ?, ?);

-- name: DeleteScalingDecisionsOfApps :exec
DELETE FROM scaling_decisions WHERE app_id IN (sqlc.slice(app_ids));

-- name: ListScalingLoads :many
SELECT * FROM scaling_loads WHERE app_id = ? AND region = ? AND role = ? AND began_at >= ? ORDER BY began_at;

-- name: DeleteScalingLoads :execrows
DELETE FROM scaling_loads WHERE began_at < sqlc.arg(before) ORDER BY began_at LIMIT ?;

-- name: DeleteScalingLoadsOfApps :exec
DELETE FROM scaling_loads WHERE app_id IN (sqlc.slice(app_ids));
