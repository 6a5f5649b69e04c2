-- +goose NO TRANSACTION
-- +goose Up
-- Minimum rules for every rollout of a workspace (scope_id is empty), a project or an environment
-- (scope_id is its id). by_operator: an operator set it, in addition to the workspace's own.
CREATE TABLE IF NOT EXISTS protections (
    workspace_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    scope_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    by_operator    BOOLEAN NOT NULL,
    approvals      INT NOT NULL,
    approval_role  INT NOT NULL,
    not_deployer   BOOLEAN NOT NULL,
    bake_time      BIGINT NOT NULL,
    auto_rollback  BOOLEAN NOT NULL,
    reason         VARCHAR(1024) NOT NULL,
    set_by         VARCHAR(255) NOT NULL,
    set_at         BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, scope_id, by_operator)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
