-- +goose NO TRANSACTION
-- +goose Up
-- Where notifications of a workspace are sent. scope_id is empty for the workspace, or the id of a
-- project or of an app. kinds has a bit for each kind that is sent. origin is the scheme and host
-- of the URL. The URL and the signing secrets are sealed, as versions of a secret with this id.
CREATE TABLE IF NOT EXISTS notification_endpoints (
    id             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name           VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    scope_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    format         INT NOT NULL,
    kinds          BIGINT NOT NULL,
    origin         VARCHAR(512) NOT NULL,
    disabled       BOOLEAN NOT NULL,
    previous_until BIGINT NOT NULL,
    tested_at      BIGINT NOT NULL,
    created_by     VARCHAR(255) NOT NULL,
    created_at     BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY endpoints_by_name (workspace_id, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
