-- name: InsertPreset :exec
INSERT INTO presets (workspace_id, name, version, definition, set_by, set_at) VALUES (?, ?, ?, ?, ?, ?);

-- name: GetPreset :one
SELECT * FROM presets WHERE workspace_id = ? AND name = ? AND version = ?;

-- name: GetNewestPreset :one
SELECT * FROM presets WHERE workspace_id = ? AND name = ? ORDER BY version DESC LIMIT 1;

-- name: ListPresets :many
-- Returns the newest version of each preset.
SELECT p.* FROM presets p
WHERE p.workspace_id = ? AND NOT EXISTS (
    SELECT 1 FROM presets q WHERE q.workspace_id = p.workspace_id AND q.name = p.name AND q.version > p.version
)
ORDER BY p.name;

-- name: ListPresetVersions :many
SELECT version, set_by, set_at FROM presets WHERE workspace_id = ? AND name = ? ORDER BY version DESC;

-- name: ForgetPresetVersions :exec
DELETE FROM presets WHERE workspace_id = sqlc.arg(workspace_id) AND name = sqlc.arg(name) AND version <= sqlc.arg(newest);

-- name: DeletePreset :execrows
DELETE FROM presets WHERE workspace_id = ? AND name = ?;

-- name: DeletePresetsOfWorkspace :exec
DELETE FROM presets WHERE workspace_id = ?;

-- name: GetPresetFloor :one
SELECT version FROM preset_floors WHERE workspace_id = ?;

-- name: RaisePresetFloor :exec
INSERT INTO preset_floors (workspace_id, version)
SELECT p.workspace_id, p.version FROM presets p
WHERE p.workspace_id = ? AND p.name = ?
ON DUPLICATE KEY UPDATE version = GREATEST(preset_floors.version, VALUES(version));

-- name: DeletePresetFloor :exec
DELETE FROM preset_floors WHERE workspace_id = ?;
