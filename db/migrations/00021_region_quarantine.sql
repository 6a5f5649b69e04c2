-- +goose NO TRANSACTION
-- +goose Up
-- Workloads in a region that the control plane does not know.
CREATE TABLE IF NOT EXISTS region_quarantine (
    region       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workload_key VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    generation   BIGINT NOT NULL,
    instances    INT NOT NULL,
    since        BIGINT NOT NULL,
    approved_at  BIGINT NOT NULL,
    PRIMARY KEY (region, workload_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
