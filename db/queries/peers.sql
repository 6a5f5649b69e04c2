-- last_seen is a time of the database's clock, because the clocks of the processes may differ.

-- name: PutPeer :exec
INSERT INTO peers (id, address, started_at, last_seen)
VALUES (?, ?, ?, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED))
ON DUPLICATE KEY UPDATE address = VALUES(address), last_seen = VALUES(last_seen);

-- name: ListPeers :many
SELECT * FROM peers
WHERE last_seen >= CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) - CAST(sqlc.arg(within) AS SIGNED)
ORDER BY id;

-- name: DeletePeer :exec
DELETE FROM peers WHERE id = ?;

-- name: DeletePeers :execrows
DELETE FROM peers
WHERE last_seen < CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) - CAST(sqlc.arg(within) AS SIGNED);

-- name: PutStream :exec
INSERT INTO region_streams (region, peer_id) VALUES (?, ?)
ON DUPLICATE KEY UPDATE peer_id = VALUES(peer_id);

-- name: CountStreams :one
SELECT COUNT(*) FROM region_streams s JOIN regions r ON r.id = s.region WHERE r.status = ?;

-- name: GetStream :one
SELECT peer_id FROM region_streams WHERE region = ?;

-- name: DeleteStream :exec
DELETE FROM region_streams WHERE region = ?;

-- name: PutPeerKey :exec
INSERT INTO peer_keys (peer_id, key_id, seals, last_seen)
VALUES (?, ?, ?, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED))
ON DUPLICATE KEY UPDATE seals = VALUES(seals), last_seen = VALUES(last_seen);

-- name: ListPeerKeys :many
-- The last column is the time since the row was renewed.
SELECT peer_id, key_id, seals, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 - last_seen AS SIGNED) AS unseen_for
FROM peer_keys
ORDER BY peer_id, key_id;

-- name: DeletePeerKeys :execrows
DELETE FROM peer_keys
WHERE last_seen < CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) - CAST(sqlc.arg(within) AS SIGNED);
