-- +goose NO TRANSACTION
-- +goose Up
-- How the app's replicas follow the load. policy is a serialised windlass.v1.ScalingPolicy, empty
-- for none. holds is JSON.
CREATE TABLE IF NOT EXISTS app_scaling (
    app_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    policy       BLOB NOT NULL,
    holds        BLOB NOT NULL,
    updated_at   BIGINT NOT NULL,
    PRIMARY KEY (app_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
