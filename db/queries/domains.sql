-- name: InsertDomain :exec
-- One that nobody has verified.
INSERT INTO domains (app_id, name, workspace_id, held, token, created_by, created_at, verified_at)
VALUES (?, ?, ?, NULL, ?, ?, ?, 0);

-- name: VerifyDomain :execrows
-- Fails as a duplicate while another app holds the name.
UPDATE domains SET held = name, verified_at = ? WHERE app_id = ? AND name = ?;

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
