-- +goose NO TRANSACTION
-- +goose Up
-- One row per secret with its latest version, so that lists and snapshots read no
-- ciphertext.
CREATE TABLE IF NOT EXISTS secrets (
    environment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name           VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version        INT NOT NULL,
    created_at     BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    PRIMARY KEY (environment_id, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
