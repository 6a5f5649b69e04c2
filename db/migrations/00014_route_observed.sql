-- +goose NO TRANSACTION
-- +goose Up
-- The last report of a region's agent about an app's routes.
CREATE TABLE IF NOT EXISTS route_observed (
    app_id     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    region     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    guard_no   BIGINT NOT NULL,
    epoch      BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    phase      INT NOT NULL,
    code       VARCHAR(128) NOT NULL,
    message    TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (app_id, region)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
