-- +goose NO TRANSACTION
-- +goose Up
-- The routes of an app in a region. The weights of their targets are in the topology rows. This
-- table has only the generation and the hosts (a JSON array).
CREATE TABLE IF NOT EXISTS app_routes (
    app_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    region       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    hosts        BLOB NOT NULL,
    generation   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    PRIMARY KEY (app_id, region),
    KEY routes_by_region (region)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
