-- +goose NO TRANSACTION
-- +goose Up
-- A workspace's own limits. 0 means no limit, and -1 means the control plane's default.
CREATE TABLE IF NOT EXISTS workspace_limits (
    workspace_id      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    apps              BIGINT NOT NULL,
    deployments       BIGINT NOT NULL,
    instances         BIGINT NOT NULL,
    gpus              BIGINT NOT NULL,
    rollouts          BIGINT NOT NULL,
    starts_per_minute BIGINT NOT NULL,
    starts_burst      BIGINT NOT NULL,
    updated_at        BIGINT NOT NULL,
    resource_version  BIGINT NOT NULL,
    PRIMARY KEY (workspace_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
