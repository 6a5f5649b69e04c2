-- +goose NO TRANSACTION
-- +goose Up
-- The newest revision of each region's feed. A writer locks this row last and holds the lock until
-- its commit, which makes revisions gap-free and in commit order. The current epoch began at
-- base_revision and base_chain.
CREATE TABLE IF NOT EXISTS region_heads (
    region        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch         BIGINT NOT NULL,
    revision      BIGINT NOT NULL,
    chain         VARBINARY(32) NOT NULL,
    base_revision BIGINT NOT NULL,
    base_chain    VARBINARY(32) NOT NULL,
    PRIMARY KEY (region)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
