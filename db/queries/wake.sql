-- name: LockWakes :many
-- What is asked for already, and in how many ms. Held to the commit, so that a step
-- that clears its row does so after this transaction and reads what it wrote.
SELECT app_id, CAST(due - UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) AS due_in
FROM app_wake FORCE INDEX (PRIMARY) WHERE app_id IN (sqlc.slice(app_ids)) ORDER BY app_id FOR UPDATE;

-- name: ClearWakes :execrows
-- In the form for several tables, which takes an index: see LockApps.
DELETE w FROM app_wake w FORCE INDEX (PRIMARY) WHERE w.app_id IN (sqlc.slice(app_ids));

-- name: DueWakes :many
-- sent_at is 0 for what was to wait, due for what was sent with the commit, and later
-- for what was sent since. All times of these rows are of the database's clock.
SELECT * FROM app_wake
WHERE due <= UNIX_TIMESTAMP(NOW(3)) * 1000
  AND (sent_at = 0
    OR (sent_at = due AND sent_at <= UNIX_TIMESTAMP(NOW(3)) * 1000 - CAST(sqlc.arg(lost_after) AS SIGNED))
    OR sent_at <= UNIX_TIMESTAMP(NOW(3)) * 1000 - CAST(sqlc.arg(again_after) AS SIGNED))
ORDER BY due, app_id LIMIT ?;

-- name: MarkWakesSent :exec
-- A row that was cleared and set again since it was read is due later.
UPDATE app_wake SET sent_at = CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)
WHERE app_id IN (sqlc.slice(app_ids)) AND due <= LEAST(CAST(sqlc.arg(due_by) AS SIGNED), UNIX_TIMESTAMP(NOW(3)) * 1000);

-- name: UnsendWakes :execrows
UPDATE app_wake SET sent_at = 0 WHERE sent_at > 0;
