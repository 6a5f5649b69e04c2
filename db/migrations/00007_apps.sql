-- +goose NO TRANSACTION
-- +goose Up
-- A long-lived, routed model service. deleted_at is part of the unique name, so that
-- the name of a deleted app is free again.
CREATE TABLE IF NOT EXISTS apps (
    id                     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id           VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    project_id             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    environment_id         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name                   VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    description            VARCHAR(1024) NOT NULL,
    status                 INT NOT NULL,
    message                TEXT NOT NULL,
    live_deployment_id     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    previous_deployment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    rollout_id             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    latest_version         INT NOT NULL,
    replicas               INT NOT NULL,
    step                   BIGINT NOT NULL,
    deleting_since         BIGINT NOT NULL,
    abandon_unreachable    BOOLEAN NOT NULL,
    deleted_at             BIGINT NOT NULL,
    created_at             BIGINT NOT NULL,
    updated_at             BIGINT NOT NULL,
    resource_version       BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY apps_name (environment_id, name, deleted_at),
    KEY apps_by_name (workspace_id, name, id),
    KEY apps_by_project (project_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
