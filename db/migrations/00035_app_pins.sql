-- +goose NO TRANSACTION
-- +goose Up
-- Versions that are kept live beside the one that rollouts move. regions is where each is
-- and how far, in the control plane's own form. While there is a row, weights of the
-- deployment's topology are percent of all traffic, and those of the app's other deployments
-- are relative to what such rows leave. Rows change only under the app's lock.
CREATE TABLE IF NOT EXISTS app_pins (
    app_id        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    deployment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version       INT NOT NULL,
    weight        INT NOT NULL,
    removing      BOOLEAN NOT NULL,
    pinned_by     VARCHAR(255) NOT NULL,
    why           VARCHAR(1024) NOT NULL,
    regions       MEDIUMBLOB NOT NULL,
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL,
    PRIMARY KEY (app_id, deployment_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
