-- name: LockWakes :many
-- What is asked for already. Held to the commit, so that a step that clears its row
-- does so after this transaction and reads what it wrote.
SELECT * FROM app_wake WHERE app_id IN (sqlc.slice(app_ids)) ORDER BY app_id FOR UPDATE;

-- name: ClearWake :execrows
DELETE FROM app_wake WHERE app_id = ?;

-- name: DueWakes :many
-- sent_at is 0 for what was to wait, due for what was sent with the commit, and later
-- for what was sent since.
SELECT * FROM app_wake
WHERE due <= sqlc.arg(now)
  AND (sent_at = 0 OR (sent_at = due AND sent_at <= sqlc.arg(lost)) OR sent_at <= sqlc.arg(again))
ORDER BY due, app_id LIMIT ?;

-- name: MarkWakesSent :exec
UPDATE app_wake SET sent_at = sqlc.arg(at) WHERE app_id IN (sqlc.slice(app_ids)) AND due <= sqlc.arg(at);
