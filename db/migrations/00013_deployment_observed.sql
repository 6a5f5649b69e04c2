-- +goose NO TRANSACTION
-- +goose Up
-- The last report of a region's agent about one deployment. guard_no = fence<<40 | sequence orders
-- reports. A report whose guard is not greater than the stored one is ignored.
CREATE TABLE IF NOT EXISTS deployment_observed (
    deployment_id      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    region             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    app_id             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    guard_no           BIGINT NOT NULL,
    applied_epoch      BIGINT NOT NULL,
    applied_generation BIGINT NOT NULL,
    phase              INT NOT NULL,
    code               VARCHAR(128) NOT NULL,
    message            TEXT NOT NULL,
    retryable          BOOLEAN NOT NULL,
    deleted            BOOLEAN NOT NULL,
    counts_generation  BIGINT NOT NULL,
    pending            INT NOT NULL,
    running            INT NOT NULL,
    ready              INT NOT NULL,
    draining           INT NOT NULL,
    failed             INT NOT NULL,
    ready_replicas     INT NOT NULL,
    doomed             INT NOT NULL,
    reason             VARCHAR(128) NOT NULL,
    reason_message     TEXT NOT NULL,
    restarts           INT NOT NULL,
    slowest_start_ms   BIGINT NOT NULL,
    updated_at         BIGINT NOT NULL,
    PRIMARY KEY (deployment_id, region),
    KEY observed_by_app (app_id),
    KEY observed_by_region (region)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
