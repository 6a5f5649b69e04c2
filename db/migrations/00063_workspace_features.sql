-- +goose NO TRANSACTION
-- +goose Up
-- The tier of a workspace, and the features in which it differs from the tier. Without a row, the workspace has the tier "default".
CREATE TABLE IF NOT EXISTS workspace_features (
    workspace_id     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    tier             VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    allowed          BIGINT NOT NULL,
    denied           BIGINT NOT NULL,
    updated_at       BIGINT NOT NULL,
    resource_version BIGINT NOT NULL,
    PRIMARY KEY (workspace_id),
    KEY tier (tier)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
