-- +goose NO TRANSACTION
-- +goose Up
-- The highest version that a deleted secret of an environment had. A secret that is
-- made again begins above it, because agents keep values by version. One row an
-- environment, not one a name, so that names that come and go leave nothing.
CREATE TABLE IF NOT EXISTS secret_floors (
    environment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version        INT NOT NULL,
    PRIMARY KEY (environment_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
