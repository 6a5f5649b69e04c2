-- +goose NO TRANSACTION
-- +goose Up
-- Owns variables (a JSON object, never queried into) and secrets.
CREATE TABLE IF NOT EXISTS environments (
    id               VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    project_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name             VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    variables        MEDIUMBLOB NOT NULL,
    created_at       BIGINT NOT NULL,
    updated_at       BIGINT NOT NULL,
    resource_version BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY environments_name (project_id, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
