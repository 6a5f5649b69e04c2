-- +goose NO TRANSACTION
-- +goose Up
-- A tenant: the unit of isolation, quota and billing.
CREATE TABLE IF NOT EXISTS workspaces (
    id               VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name             VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_at       BIGINT NOT NULL,
    updated_at       BIGINT NOT NULL,
    resource_version BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY workspaces_name (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
