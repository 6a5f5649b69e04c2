-- +goose NO TRANSACTION
-- +goose Up
-- Hosts of users' own. Several apps may wait for one; held is the name once it was
-- verified, and NULL before, so that one app alone has it. apps.domains counts those of
-- an app that were verified: what the planner need not look for it does not.
CREATE TABLE IF NOT EXISTS domains (
    app_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name         VARCHAR(253) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    held         VARCHAR(253) CHARACTER SET ascii COLLATE ascii_bin,
    token        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_by   VARCHAR(255) NOT NULL,
    created_at   BIGINT NOT NULL,
    verified_at  BIGINT NOT NULL,
    PRIMARY KEY (app_id, name),
    UNIQUE KEY domains_held (held),
    KEY domains_by_workspace (workspace_id, name, app_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;

ALTER TABLE apps
    ADD COLUMN IF NOT EXISTS domains INT NOT NULL DEFAULT 0;
