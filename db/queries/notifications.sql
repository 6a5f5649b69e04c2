-- name: InsertNotificationEndpoint :exec
INSERT INTO notification_endpoints (
    id, workspace_id, name, scope_id, format, kinds, origin, disabled, previous_until, tested_at, created_by, created_at, updated_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: UpdateNotificationEndpoint :execrows
UPDATE notification_endpoints SET scope_id = ?, format = ?, kinds = ?, origin = ?, disabled = ?, previous_until = ?, tested_at = ?, updated_at = ?
WHERE workspace_id = ? AND id = ?;

-- name: LockNotificationEndpoint :one
SELECT * FROM notification_endpoints WHERE workspace_id = ? AND name = ? FOR UPDATE;

-- name: ListNotificationEndpoints :many
SELECT * FROM notification_endpoints WHERE workspace_id = ? ORDER BY name LIMIT ?;

-- name: GetNotificationEndpoints :many
SELECT * FROM notification_endpoints WHERE id IN (sqlc.slice(ids));

-- name: NotificationEndpointsOfScopes :many
SELECT * FROM notification_endpoints WHERE scope_id IN (sqlc.slice(scope_ids)) AND scope_id <> '';

-- name: NotificationEndpointsOfRegion :many
-- Endpoints of the workspaces that own the region or were granted it. Runs when a region becomes
-- unreachable or returns.
SELECT e.* FROM notification_endpoints e
WHERE e.disabled = FALSE AND e.kinds & sqlc.arg(kind_bit) <> 0 AND e.workspace_id IN (
    SELECT r.workspace_id FROM regions r WHERE r.id = sqlc.arg(region)
    UNION ALL SELECT g.workspace_id FROM region_grants g WHERE g.region = sqlc.arg(region)
) ORDER BY e.workspace_id, e.name;

-- name: DeleteNotificationEndpoint :execrows
DELETE FROM notification_endpoints WHERE workspace_id = ? AND id = ?;

-- name: DeleteDeliveriesOfEndpoint :exec
DELETE FROM notification_deliveries WHERE endpoint_id = ?;

-- name: DueDeliveries :many
-- Pending deliveries, except of busy endpoints. The longest due comes first.
SELECT * FROM notification_deliveries
WHERE state = 0 AND due_at <= sqlc.arg(at) AND endpoint_id NOT IN (sqlc.slice(busy))
ORDER BY due_at LIMIT ?;

-- name: ClaimDelivery :execrows
-- Claims a pending delivery if it has not changed since it was read.
UPDATE notification_deliveries SET
    attempts = attempts + 1, due_at = sqlc.arg(claimed_until), events = sqlc.arg(events), apps = sqlc.arg(apps), app_names = sqlc.arg(app_names)
WHERE endpoint_id = sqlc.arg(endpoint_id) AND message_id = sqlc.arg(message_id) AND state = 0
  AND attempts = sqlc.arg(attempts) AND due_at = sqlc.arg(due_at);

-- name: DeleteMergedDeliveries :execrows
-- Deletes deliveries that were merged into another one. None of them was ever sent.
DELETE FROM notification_deliveries
WHERE endpoint_id = ? AND message_id IN (sqlc.slice(message_ids)) AND state = 0 AND attempts = 0;

-- name: NoteDelivery :execrows
-- Stores the result of a call, if it belongs to the last claim.
UPDATE notification_deliveries SET state = sqlc.arg(state), due_at = sqlc.arg(due_at), done_at = sqlc.arg(done_at), problem = sqlc.arg(problem)
WHERE endpoint_id = sqlc.arg(endpoint_id) AND message_id = sqlc.arg(message_id) AND state = 0 AND attempts = sqlc.arg(attempts);

-- name: ListDeliveries :many
-- Newest first. A negative state means any.
SELECT * FROM notification_deliveries
WHERE endpoint_id = sqlc.arg(endpoint_id) AND (state = sqlc.arg(state) OR sqlc.arg(state) < 0) AND message_id < sqlc.arg(before)
ORDER BY message_id DESC LIMIT ?;

-- name: CountDeliveries :many
-- Numbers of pending and dead deliveries, by endpoint.
SELECT endpoint_id, state, COUNT(*) AS n FROM notification_deliveries
WHERE workspace_id = ? AND state IN (0, 2) GROUP BY endpoint_id, state;

-- name: ReplayDeliveries :execrows
-- Makes dead deliveries pending again, with the same ids.
UPDATE notification_deliveries SET state = 0, attempts = 1, due_at = sqlc.arg(at), tries_since = sqlc.arg(at), done_at = 0
WHERE endpoint_id = sqlc.arg(endpoint_id) AND state = 2 AND (sqlc.arg(message_id) = '' OR message_id = sqlc.arg(message_id));

-- name: OldestPendingDelivery :one
SELECT COUNT(*) AS n, CAST(COALESCE(MIN(tries_since), 0) AS SIGNED) AS since FROM notification_deliveries WHERE state = 0;

-- name: ForgetDeliveries :execrows
DELETE FROM notification_deliveries WHERE state IN (1, 2) AND due_at <= ? LIMIT ?;
