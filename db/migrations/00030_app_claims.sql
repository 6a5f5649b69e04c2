-- +goose NO TRANSACTION
-- +goose Up
-- What an app counts for in its workspace's quotas, as of a live deployment and a
-- rollout. A row that is of others than the app has now counts for nothing, and is
-- made anew by the next call that has to know.
CREATE TABLE IF NOT EXISTS app_claims (
    app_id             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    live_deployment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    rollout_id         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    instances          BIGINT NOT NULL,
    gpus               BIGINT NOT NULL,
    PRIMARY KEY (app_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
