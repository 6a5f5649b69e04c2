-- +goose NO TRANSACTION
-- +goose Up
-- Rows for people. Decisions read deployment_observed. terminated_at is 0 until the instance ends,
-- so that indexes with it change only then.
CREATE TABLE IF NOT EXISTS instances (
    id            VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    app_id        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    deployment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    region        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    role          VARCHAR(63) NOT NULL,
    group_no      INT NOT NULL,
    slot_no       INT NOT NULL,
    status        INT NOT NULL,
    reason        VARCHAR(128) NOT NULL,
    message       TEXT NOT NULL,
    address       VARCHAR(255) NOT NULL,
    runtime_name  VARCHAR(255) NOT NULL,
    restarts      INT NOT NULL,
    gpus          BLOB NOT NULL,
    guard_no      BIGINT NOT NULL,
    started_at    BIGINT NOT NULL,
    ready_at      BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    terminated_at BIGINT NOT NULL,
    PRIMARY KEY (id),
    KEY instances_by_workspace (workspace_id),
    KEY instances_by_app (app_id),
    KEY instances_by_deployment (deployment_id),
    KEY instances_by_region (region, terminated_at),
    KEY instances_terminated (terminated_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
