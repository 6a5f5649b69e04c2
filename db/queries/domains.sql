-- name: InsertDomain :exec
-- Inserts a domain that is not verified yet.
INSERT INTO domains (app_id, name, workspace_id, held, token, created_by, created_at, verified_at)
VALUES (?, ?, ?, NULL, ?, ?, ?, 0);

-- name: VerifyDomain :execrows
-- Fails with a duplicate key while another app has the name.
UPDATE domains SET held = name, verified_at = sqlc.arg(at), checked_at = sqlc.arg(at), missing_since = 0, lapsed_at = 0
WHERE app_id = ? AND name = ?;

-- name: ReleaseDomain :execrows
-- The app waits for the verification again.
UPDATE domains SET held = NULL, verified_at = 0, checked_at = 0, missing_since = 0, lapsed_at = 0
WHERE app_id = ? AND name = ?;

-- name: DomainsToCheck :many
-- The verified domains whose record was checked longest ago. It reads the whole table, once per
-- round.
SELECT * FROM domains WHERE held IS NOT NULL AND checked_at < sqlc.arg(before) ORDER BY checked_at, held LIMIT ?;

-- name: LockHeldDomains :many
SELECT * FROM domains WHERE held IN (sqlc.slice(names)) ORDER BY held FOR UPDATE;

-- name: DomainsFound :exec
UPDATE domains SET checked_at = ?, missing_since = 0, lapsed_at = 0 WHERE held IN (sqlc.slice(names));

-- name: DomainsMissing :exec
UPDATE domains SET checked_at = sqlc.arg(at), missing_since = CASE WHEN missing_since = 0 THEN sqlc.arg(at) ELSE missing_since END
WHERE held IN (sqlc.slice(names));

-- name: DomainsUnanswered :exec
UPDATE domains SET checked_at = ? WHERE held IN (sqlc.slice(names));

-- name: DomainsLapsed :exec
UPDATE domains SET lapsed_at = ? WHERE held IN (sqlc.slice(names));

-- name: HolderOfDomain :one
SELECT * FROM domains WHERE held = ?;

-- name: DeleteDomain :execrows
DELETE FROM domains WHERE app_id = ? AND name = ?;

-- name: DeleteDomainsOfApps :exec
DELETE FROM domains WHERE app_id IN (sqlc.slice(app_ids));

-- name: ListDomains :many
SELECT * FROM domains
WHERE workspace_id = sqlc.arg(workspace_id) AND (sqlc.arg(app_id) = '' OR app_id = sqlc.arg(app_id))
  AND (name > sqlc.arg(after_name) OR (name = sqlc.arg(after_name) AND app_id > sqlc.arg(after_id)))
ORDER BY name, app_id LIMIT ?;

-- name: DomainsOfApps :many
SELECT * FROM domains WHERE app_id IN (sqlc.slice(app_ids)) ORDER BY app_id, name;
