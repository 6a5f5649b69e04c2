-- +goose NO TRANSACTION
-- +goose Up
-- Rollout policy and progress of apps that have or had a policy. policy is a serialised
-- windlass.v1.RolloutPolicy, empty for none. course is the progress of the newest rollout with a
-- policy, in the control plane's own format. The row changes only under the app's lock.
CREATE TABLE IF NOT EXISTS app_staging (
    app_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    policy       MEDIUMBLOB NOT NULL,
    course       MEDIUMBLOB NOT NULL,
    updated_at   BIGINT NOT NULL,
    PRIMARY KEY (app_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
