-- +goose NO TRANSACTION
-- +goose Up
-- Every decision about an app: when, what, why, who.
CREATE TABLE IF NOT EXISTS history (
    id            VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    app_id        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    at            BIGINT NOT NULL,
    what          VARCHAR(128) NOT NULL,
    why           TEXT NOT NULL,
    who           VARCHAR(255) NOT NULL,
    rollout_id    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    deployment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version       INT NOT NULL,
    region        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (id),
    KEY history_by_app (app_id, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
