-- name: InsertSecret :exec
-- Inserts the first version of a secret. If two writers insert it, the second fails with a duplicate key.
INSERT INTO secrets (environment_id, name, workspace_id, version, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?);

-- name: GetSecretFloor :one
SELECT version FROM secret_floors WHERE environment_id = ?;

-- name: RaiseSecretFloor :exec
INSERT INTO secret_floors (environment_id, version)
SELECT s.environment_id, s.version FROM secrets s
WHERE s.workspace_id = ? AND s.environment_id = ? AND s.name = ?
ON DUPLICATE KEY UPDATE version = GREATEST(secret_floors.version, VALUES(version));

-- name: DeleteSecretFloor :exec
DELETE FROM secret_floors WHERE environment_id = ?;

-- name: AdvanceSecret :execrows
-- Sets the next version. It changes no row if the version is not the latest version plus one.
UPDATE secrets SET version = sqlc.arg(version), updated_at = sqlc.arg(updated_at)
WHERE workspace_id = sqlc.arg(workspace_id) AND environment_id = sqlc.arg(environment_id)
  AND name = sqlc.arg(name) AND version = sqlc.arg(version) - 1;

-- name: InsertSecretVersion :exec
INSERT INTO secret_versions (environment_id, name, version, ciphertext, created_at)
VALUES (?, ?, ?, ?, ?);

-- name: GetSecret :one
SELECT s.*, v.ciphertext FROM secrets s
JOIN secret_versions v
  ON v.environment_id = s.environment_id AND v.name = s.name AND v.version = s.version
WHERE s.workspace_id = ? AND s.environment_id = ? AND s.name = ?;

-- name: GetSecretVersion :one
SELECT s.workspace_id, s.environment_id, s.name, v.version, s.created_at, v.created_at AS updated_at, v.ciphertext
FROM secrets s
JOIN secret_versions v ON v.environment_id = s.environment_id AND v.name = s.name
WHERE s.workspace_id = ? AND s.environment_id = ? AND s.name = ? AND v.version = ?;

-- name: ListSecrets :many
SELECT * FROM secrets
WHERE workspace_id = ? AND environment_id = ? AND name > sqlc.arg(after)
ORDER BY name LIMIT ?;

-- name: LatestSecretVersions :many
-- With several environments, the query may return pairs that the caller does not need. The caller
-- ignores these pairs.
SELECT environment_id, name, version FROM secrets
WHERE environment_id IN (sqlc.slice(environment_ids)) AND name IN (sqlc.slice(names));

-- name: DeleteSecret :execrows
DELETE FROM secrets WHERE workspace_id = ? AND environment_id = ? AND name = ?;

-- name: DeleteSecretVersions :exec
DELETE FROM secret_versions WHERE environment_id = ? AND name = ?;

-- name: DeleteSecretsOfEnvironment :exec
DELETE FROM secrets WHERE environment_id = ?;

-- name: DeleteSecretVersionsOfEnvironment :exec
DELETE FROM secret_versions WHERE environment_id = ?;

-- name: ListSealedValues :many
-- Returns values that do not begin with the prefix. The prefix names the key that sealed a value.
SELECT environment_id, name, version, ciphertext FROM secret_versions
WHERE SUBSTRING(ciphertext, 1, 5) <> sqlc.arg(prefix)
  AND environment_id >= sqlc.arg(environment_id)
  AND (environment_id > sqlc.arg(environment_id)
    OR (environment_id = sqlc.arg(environment_id) AND name > sqlc.arg(name))
    OR (environment_id = sqlc.arg(environment_id) AND name = sqlc.arg(name) AND version > sqlc.arg(version)))
ORDER BY environment_id, name, version LIMIT ?;

-- name: CountSealedValues :many
SELECT SUBSTRING(ciphertext, 1, 5) AS prefix, COUNT(*) AS sealed FROM secret_versions
GROUP BY SUBSTRING(ciphertext, 1, 5);
