-- +goose NO TRANSACTION
-- +goose Up
-- Workspaces that may use a platform region.
CREATE TABLE IF NOT EXISTS region_grants (
    region       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_at   BIGINT NOT NULL,
    PRIMARY KEY (region, workspace_id),
    KEY grants_by_workspace (workspace_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
