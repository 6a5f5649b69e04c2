-- +goose NO TRANSACTION
-- +goose Up
-- Groups environments and apps of a workspace.
CREATE TABLE IF NOT EXISTS projects (
    id               VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name             VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_at       BIGINT NOT NULL,
    updated_at       BIGINT NOT NULL,
    resource_version BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY projects_name (workspace_id, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
