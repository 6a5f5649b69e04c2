-- +goose NO TRANSACTION
-- +goose Up
-- Domains that users added. Several apps may wait for the same domain. held is NULL until the
-- domain is verified for the app, and then the name: its unique key ensures that only one app has
-- it. apps.domains counts verified domains, so that the planner reads this table only for apps with
-- a domain.
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
