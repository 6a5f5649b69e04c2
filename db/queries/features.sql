-- name: GetFeatures :one
-- -1 means all features. A missing tier has no features, except "default", which has all.
SELECT w.id, COALESCE(f.tier, 'default') AS tier,
    CAST(COALESCE(t.features, CASE WHEN f.tier IS NULL OR f.tier = 'default' THEN -1 ELSE 0 END) AS SIGNED) AS tier_features,
    COALESCE(f.allowed, 0) AS allowed, COALESCE(f.denied, 0) AS denied,
    COALESCE(f.updated_at, 0) AS updated_at, COALESCE(f.resource_version, 0) AS resource_version
FROM workspaces w
LEFT JOIN workspace_features f ON f.workspace_id = w.id
LEFT JOIN tiers t ON t.name = f.tier OR (f.tier IS NULL AND t.name = 'default')
WHERE w.id = ?;

-- name: PutFeatures :exec
-- The caller has locked the workspace's row, so no other write comes in between.
REPLACE INTO workspace_features (
    workspace_id, tier, allowed, denied, updated_at, resource_version
) VALUES (?, ?, ?, ?, ?, ?);

-- name: DeleteFeatures :exec
DELETE FROM workspace_features WHERE workspace_id = ?;

-- name: LockTier :one
SELECT * FROM tiers WHERE name = ? FOR UPDATE;

-- name: InsertTier :exec
INSERT INTO tiers (name, features, updated_at, resource_version) VALUES (?, ?, ?, ?);

-- name: UpdateTier :execrows
-- The caller has locked the tier's row, so no other write comes in between.
UPDATE tiers SET features = ?, updated_at = ?, resource_version = ? WHERE name = ?;

-- name: ListTiers :many
SELECT * FROM tiers ORDER BY name LIMIT ?;

-- name: DeleteTier :execrows
DELETE FROM tiers WHERE name = ?;

-- name: CountWorkspacesOfTier :one
SELECT COUNT(*) FROM workspace_features WHERE tier = ?;
