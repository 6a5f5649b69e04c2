-- +goose NO TRANSACTION
-- +goose Up
-- Which process a region's agent watched last, and so where it can be asked. The
-- process may have gone since.
CREATE TABLE IF NOT EXISTS region_streams (
    region  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    peer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (region)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
