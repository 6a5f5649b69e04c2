-- +goose NO TRANSACTION
-- +goose Up
-- The load on which scaling decisions were made, of an app in a region or of a role of its pool. A row has the load of
-- up to half an hour. samples are the bytes of model.EncodeLoads.
CREATE TABLE IF NOT EXISTS scaling_loads (
    app_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    region       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    role         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    began_at     BIGINT NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    samples      BLOB NOT NULL,
    PRIMARY KEY (app_id, region, role, began_at),
    KEY scaling_loads_by_time (began_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
