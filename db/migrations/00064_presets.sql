-- +goose NO TRANSACTION
-- +goose Up
-- Versions of the presets of workspaces. definition is a windlass.v1.PresetDefinition. A version is never changed.
CREATE TABLE IF NOT EXISTS presets (
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name         VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version      INT NOT NULL,
    definition   MEDIUMBLOB NOT NULL,
    set_by       VARCHAR(255) NOT NULL,
    set_at       BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, name, version)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
