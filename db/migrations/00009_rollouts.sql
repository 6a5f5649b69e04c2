-- +goose NO TRANSACTION
-- +goose Up
-- The move of an app to a deployment.
CREATE TABLE IF NOT EXISTS rollouts (
    id                 VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    app_id             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    deployment_id      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version            INT NOT NULL,
    from_deployment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    from_version       INT NOT NULL,
    status             INT NOT NULL,
    reason             VARCHAR(128) NOT NULL,
    message            TEXT NOT NULL,
    created_by         VARCHAR(255) NOT NULL,
    cancel_requested   BOOLEAN NOT NULL,
    cancelled_by       VARCHAR(255) NOT NULL,
    cancel_why         VARCHAR(1024) NOT NULL,
    traceparent        VARCHAR(128) NOT NULL,
    attempts           INT NOT NULL,
    created_at         BIGINT NOT NULL,
    deadline           BIGINT NOT NULL,
    finished_at        BIGINT NOT NULL,
    PRIMARY KEY (id),
    KEY rollouts_by_app (app_id, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
