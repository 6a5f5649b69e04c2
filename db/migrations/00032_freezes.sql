-- +goose NO TRANSACTION
-- +goose Up
-- Times in which no rollout starts, for a workspace, a project or an app. weekly is JSON with the
-- weekly windows.
CREATE TABLE IF NOT EXISTS freezes (
    id           VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name         VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    project_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    app_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    reason       VARCHAR(1024) NOT NULL,
    on_start     INT NOT NULL,
    starts_at    BIGINT NOT NULL,
    ends_at      BIGINT NOT NULL,
    weekly       BLOB NOT NULL,
    time_zone    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    set_by       VARCHAR(255) NOT NULL,
    set_at       BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
