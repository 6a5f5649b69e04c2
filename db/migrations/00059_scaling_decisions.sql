-- +goose NO TRANSACTION
-- +goose Up
-- For each region, the last decision that differed from the decision before it, a windlass.v1.RegionScaling.
CREATE TABLE IF NOT EXISTS scaling_decisions (
    app_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    region       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    decision     BLOB NOT NULL,
    decided_at   BIGINT NOT NULL,
    PRIMARY KEY (app_id, region)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
