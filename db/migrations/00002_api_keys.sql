-- +goose NO TRANSACTION
-- +goose Up
-- Users' credentials, as SHA-256. An operator's key has an empty workspace.
CREATE TABLE IF NOT EXISTS api_keys (
    id           VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name         VARCHAR(63) NOT NULL,
    role         INT NOT NULL,
    prefix       VARCHAR(32) NOT NULL,
    hash         VARBINARY(32) NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    revoked_at   BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY api_keys_hash (hash),
    UNIQUE KEY api_keys_name (workspace_id, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
