-- name: CrowdedApps :many
-- Returns apps with more versions or history than the limits. Reads only indexes.
SELECT app_id FROM (
    SELECT d.app_id FROM deployments d WHERE d.app_id > sqlc.arg(after)
    GROUP BY d.app_id HAVING COUNT(*) > CAST(sqlc.arg(versions) AS SIGNED)
    UNION
    SELECT h.app_id FROM history h WHERE h.app_id > sqlc.arg(after)
    GROUP BY h.app_id HAVING COUNT(*) > CAST(sqlc.arg(entries) AS SIGNED)
) crowded
ORDER BY app_id LIMIT ?;

-- name: EndedVersions :many
-- Returns versions up to a given version without references from the app, a rollout in flight, a
-- topology row or a pin. 6, 7 and 8 are failed, superseded and stopped.
SELECT d.id FROM deployments d
WHERE d.app_id = sqlc.arg(app_id) AND d.version <= sqlc.arg(upto) AND d.status IN (6, 7, 8)
  AND d.id <> sqlc.arg(live) AND d.id <> sqlc.arg(previous)
  AND NOT EXISTS (SELECT 1 FROM deployment_topology t WHERE t.deployment_id = d.id)
  AND NOT EXISTS (SELECT 1 FROM app_pins p WHERE p.app_id = d.app_id AND p.deployment_id = d.id)
  AND NOT EXISTS (SELECT 1 FROM rollouts r WHERE r.id = sqlc.arg(rollout) AND r.deployment_id = d.id)
ORDER BY d.version LIMIT ?;

-- name: DeleteDeployments :exec
DELETE FROM deployments WHERE id IN (sqlc.slice(ids));

-- name: DeleteRolloutsOfDeployments :exec
DELETE FROM rollouts WHERE app_id = ? AND deployment_id IN (sqlc.slice(deployment_ids));

-- name: DeleteObservedOfDeployments :exec
DELETE FROM deployment_observed WHERE deployment_id IN (sqlc.slice(deployment_ids));

-- name: OldestKeptHistory :one
SELECT id FROM history WHERE app_id = ? ORDER BY id DESC LIMIT 1 OFFSET ?;

-- name: TrimHistory :execrows
DELETE FROM history WHERE app_id = ? AND id < sqlc.arg(before) ORDER BY id LIMIT ?;

-- name: ForgettableApps :many
SELECT a.id FROM apps a
WHERE a.deleted_at > 0 AND a.deleted_at < sqlc.arg(deleted_before)
  AND NOT EXISTS (SELECT 1 FROM deployment_topology t WHERE t.app_id = a.id)
ORDER BY a.id LIMIT ?;

-- name: DeleteDeploymentsOfApps :exec
DELETE FROM deployments WHERE app_id IN (sqlc.slice(app_ids));

-- name: DeleteRolloutsOfApps :exec
DELETE FROM rollouts WHERE app_id IN (sqlc.slice(app_ids));

-- name: DeleteRoutesOfApps :exec
DELETE FROM app_routes WHERE app_id IN (sqlc.slice(app_ids));

-- name: DeleteObservedOfApps :exec
DELETE FROM deployment_observed WHERE app_id IN (sqlc.slice(app_ids));

-- name: DeleteRouteObservedOfApps :exec
DELETE FROM route_observed WHERE app_id IN (sqlc.slice(app_ids));

-- name: DeleteHistoryOfApps :exec
DELETE FROM history WHERE app_id IN (sqlc.slice(app_ids));

-- name: DeleteWakesOfApps :exec
DELETE FROM app_wake WHERE app_id IN (sqlc.slice(app_ids));

-- name: DeleteApps :exec
DELETE FROM apps WHERE id IN (sqlc.slice(ids));

-- name: DeleteAudit :execrows
-- Ids sort by time.
DELETE FROM audit WHERE id < sqlc.arg(before) ORDER BY id LIMIT ?;

-- name: DeleteJoinTokens :execrows
DELETE FROM join_tokens WHERE expires_at < sqlc.arg(expired_before) ORDER BY id LIMIT ?;

-- name: DeleteBrowserSessions :execrows
DELETE FROM browser_sessions WHERE expires_at < sqlc.arg(expired_before) ORDER BY expires_at LIMIT ?;

-- name: DeleteUsedSignIns :execrows
DELETE FROM used_sign_ins WHERE expires_at < sqlc.arg(expired_before) ORDER BY expires_at LIMIT ?;

-- name: DeleteIdleMembers :execrows
-- Rows of removed members stay, because they refuse further sign-ins.
DELETE FROM members WHERE signed_in_at < sqlc.arg(signed_in_before) AND removed_at = 0 ORDER BY signed_in_at LIMIT ?;

-- name: DeleteEndedAPIKeys :execrows
DELETE FROM api_keys
WHERE (revoked_at > 0 AND revoked_at < sqlc.arg(ended_before)) OR (expires_at > 0 AND expires_at < sqlc.arg(ended_before))
ORDER BY id LIMIT ?;

-- name: CrowdedSecrets :many
SELECT s.environment_id, s.name, s.version FROM secrets s
WHERE EXISTS (
    SELECT 1 FROM secret_versions v
    WHERE v.environment_id = s.environment_id AND v.name = s.name AND v.version <= s.version - CAST(sqlc.arg(keep) AS SIGNED))
ORDER BY s.environment_id, s.name LIMIT ?;

-- name: TrimSecret :execrows
DELETE FROM secret_versions WHERE environment_id = ? AND name = ? AND version <= sqlc.arg(upto);
