-- +goose NO TRANSACTION
-- +goose Up
-- What an app uses of its workspace's quotas, with one live deployment and one rollout. If the app
-- now has another live deployment or rollout, the row is outdated and does not count. The next call
-- that needs it computes it again.
CREATE TABLE IF NOT EXISTS app_claims (
    app_id             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    live_deployment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    rollout_id         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    instances          BIGINT NOT NULL,
    gpus               BIGINT NOT NULL,
    PRIMARY KEY (app_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
