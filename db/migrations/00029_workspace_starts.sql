-- +goose NO TRANSACTION
-- +goose Up
-- A workspace's token bucket for calls that start work. full_at is when it is full again, in unix
-- microseconds of the database's clock. It is a separate table from the limits, because this row
-- changes with every such call.
CREATE TABLE IF NOT EXISTS workspace_starts (
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    full_at      BIGINT NOT NULL,
    PRIMARY KEY (workspace_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
