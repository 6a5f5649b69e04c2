-- +goose NO TRANSACTION
-- +goose Up
-- The control plane's processes, with the address at which other processes call each of them.
-- last_seen is a time of the database's clock. A row that is not renewed is deleted.
CREATE TABLE IF NOT EXISTS peers (
    id         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    address    VARCHAR(255) NOT NULL,
    started_at BIGINT NOT NULL,
    last_seen  BIGINT NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
