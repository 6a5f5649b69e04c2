-- +goose NO TRANSACTION
-- +goose Up
-- The process that has the stream of a region's agent, and can send it requests. The process may
-- have ended since.
CREATE TABLE IF NOT EXISTS region_streams (
    region  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    peer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (region)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
