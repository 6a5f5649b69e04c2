-- +goose NO TRANSACTION
-- +goose Up
-- Keys for requests to an app. hash is the SHA-256 of the key, and prefix its first characters.
CREATE TABLE IF NOT EXISTS app_keys (
    app_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name         VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    prefix       VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    hash         VARBINARY(64) NOT NULL,
    created_by   VARCHAR(255) NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    PRIMARY KEY (app_id, name),
    KEY app_keys_by_workspace (workspace_id, app_id, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
