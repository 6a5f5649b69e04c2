-- name: InsertBrowserSession :exec
INSERT INTO browser_sessions (hash, session_id, workspace_id, key_id, key_hash, is_link, signed_in_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: GetBrowserSession :one
-- Like API keys, sessions are read without the workspace, because the row determines it.
SELECT * FROM browser_sessions WHERE hash = ?;

-- name: CountBrowserSession :one
SELECT COUNT(*) FROM browser_sessions WHERE session_id = ? AND expires_at > sqlc.arg(at);

-- name: CountBrowserSessionsOfKey :one
SELECT COUNT(*) FROM browser_sessions WHERE key_id = ? AND expires_at > sqlc.arg(at);

-- name: ShortenBrowserSession :execrows
-- The query locks the row, so that a sign-out waits for a renewal that shortens the session.
UPDATE browser_sessions SET expires_at = LEAST(expires_at, CAST(sqlc.arg(expires_at) AS SIGNED)) WHERE hash = ?;

-- name: DeleteBrowserSession :execrows
-- If two requests use the same link, one of them finds no row.
DELETE FROM browser_sessions WHERE hash = ?;

-- name: DeleteBrowserSessionByID :execrows
DELETE FROM browser_sessions WHERE session_id = ?;

-- name: DeleteBrowserSessionsOfKey :execrows
DELETE FROM browser_sessions WHERE key_id = ?;
