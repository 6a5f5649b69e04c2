-- +goose NO TRANSACTION
-- +goose Up
-- Sets of features with a name: bit n of features is windlass.v1.Feature n. Without a row, "default" has all features.
CREATE TABLE IF NOT EXISTS tiers (
    name             VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    features         BIGINT NOT NULL,
    updated_at       BIGINT NOT NULL,
    resource_version BIGINT NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
