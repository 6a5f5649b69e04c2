-- +goose NO TRANSACTION
-- +goose Up
-- Every call that changed something, secrets redacted.
CREATE TABLE IF NOT EXISTS audit (
    id             VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    at             BIGINT NOT NULL,
    actor          VARCHAR(255) NOT NULL,
    actor_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    source         VARCHAR(255) NOT NULL,
    procedure_name VARCHAR(255) NOT NULL,
    resource_kind  VARCHAR(64) NOT NULL,
    resource_id    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    before_json    MEDIUMBLOB NOT NULL,
    after_json     MEDIUMBLOB NOT NULL,
    PRIMARY KEY (id),
    KEY audit_by_workspace (workspace_id, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
