-- name: ListHistory :many
SELECT * FROM history
WHERE workspace_id = ? AND app_id = ? AND id < sqlc.arg(before)
ORDER BY id DESC LIMIT ?;

-- name: HistorySince :many
SELECT * FROM history WHERE app_id = ? AND id > sqlc.arg(after) ORDER BY id LIMIT ?;

-- name: ListAudit :many
SELECT * FROM audit
WHERE workspace_id = ? AND id < sqlc.arg(before)
ORDER BY id DESC LIMIT ?;

-- name: GetIdempotency :one
SELECT * FROM idempotency WHERE workspace_id = ? AND idem_key = ?;

-- name: DeleteIdempotencyKey :exec
DELETE FROM idempotency WHERE workspace_id = ? AND idem_key = ?;

-- name: DeleteIdempotency :execrows
DELETE FROM idempotency WHERE created_at < sqlc.arg(made_before) ORDER BY created_at LIMIT ?;
