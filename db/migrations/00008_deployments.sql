-- +goose NO TRANSACTION
-- +goose Up
-- One immutable version of an app; only its status changes. spec is a serialised
-- windlass.v1.DeploymentSpec.
CREATE TABLE IF NOT EXISTS deployments (
    id             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    app_id         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version        INT NOT NULL,
    spec           MEDIUMBLOB NOT NULL,
    spec_hash      VARBINARY(64) NOT NULL,
    resolved_image VARCHAR(1024) NOT NULL,
    status         INT NOT NULL,
    reason         VARCHAR(128) NOT NULL,
    message        TEXT NOT NULL,
    source         VARCHAR(32) NOT NULL,
    from_version   INT NOT NULL,
    created_by     VARCHAR(255) NOT NULL,
    stable         BOOLEAN NOT NULL,
    created_at     BIGINT NOT NULL,
    ready_at       BIGINT NOT NULL,
    ended_at       BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY deployments_version (app_id, version),
    KEY deployments_by_app (app_id, id),
    KEY deployments_by_workspace (workspace_id, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
