-- name: LockWakes :many
-- Returns the requested wake-up and the time until it, in ms. The row stays locked until the commit.
-- So a step clears the row only after this transaction, and sees its writes.
SELECT app_id, CAST(due - UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) AS due_in
FROM app_wake FORCE INDEX (PRIMARY) WHERE app_id IN (sqlc.slice(app_ids)) ORDER BY app_id FOR UPDATE;

-- name: ClearWakes :execrows
-- The statement has the multi-table form, because that can name an index: see LockApps.
DELETE w FROM app_wake w FORCE INDEX (PRIMARY) WHERE w.app_id IN (sqlc.slice(app_ids));

-- name: DueWakes :many
-- sent_at is 0 if the wake-up had to wait, equals due if it was sent with the commit, and is later
-- if it was sent after that. All times are of the database's clock.
SELECT * FROM app_wake
WHERE due <= UNIX_TIMESTAMP(NOW(3)) * 1000
  AND (sent_at = 0
    OR (sent_at = due AND sent_at <= UNIX_TIMESTAMP(NOW(3)) * 1000 - CAST(sqlc.arg(lost_after) AS SIGNED))
    OR sent_at <= UNIX_TIMESTAMP(NOW(3)) * 1000 - CAST(sqlc.arg(again_after) AS SIGNED))
ORDER BY due, app_id LIMIT ?;

-- name: MarkWakesSent :exec
-- If the row was cleared and set again after the caller read it, its due is later, and the statement
-- changes no row.
UPDATE app_wake SET sent_at = CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)
WHERE app_id IN (sqlc.slice(app_ids)) AND due <= LEAST(CAST(sqlc.arg(due_by) AS SIGNED), UNIX_TIMESTAMP(NOW(3)) * 1000);

-- name: UnsendWakes :execrows
UPDATE app_wake SET sent_at = 0 WHERE sent_at > 0;
