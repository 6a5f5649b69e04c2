-- +goose NO TRANSACTION
-- +goose Up
-- The newest revision of each region's feed. A writer locks this row last and holds
-- it to its commit: that makes revisions gap-free and in commit order. base_revision and
-- base_chain are where the current epoch began.
CREATE TABLE IF NOT EXISTS region_heads (
    region        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch         BIGINT NOT NULL,
    revision      BIGINT NOT NULL,
    chain         VARBINARY(32) NOT NULL,
    base_revision BIGINT NOT NULL,
    base_chain    VARBINARY(32) NOT NULL,
    PRIMARY KEY (region)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
