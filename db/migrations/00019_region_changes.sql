-- +goose NO TRANSACTION
-- +goose Up
-- The feed. A change has no payload, because the state of its key is read when it is sent.
CREATE TABLE IF NOT EXISTS region_changes (
    region     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    revision   BIGINT NOT NULL,
    kind       INT NOT NULL,
    change_key VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    generation BIGINT NOT NULL,
    id         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    chain      VARBINARY(32) NOT NULL,
    PRIMARY KEY (region, revision)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
