-- name: LockWakes :many
-- What is asked for already. Held to the commit, so that a step that clears its row
-- does so after this transaction and reads what it wrote.
SELECT * FROM app_wake WHERE app_id IN (sqlc.slice(app_ids)) ORDER BY app_id FOR UPDATE;

-- name: ClearWake :exec
DELETE FROM app_wake WHERE app_id = ?;

-- name: OverdueWakes :many
SELECT * FROM app_wake
WHERE due <= sqlc.arg(due) AND sent_at <= sqlc.arg(sent_before)
ORDER BY due, app_id LIMIT ?;

-- name: MarkWakesSent :exec
UPDATE app_wake SET sent_at = ? WHERE app_id IN (sqlc.slice(app_ids));
