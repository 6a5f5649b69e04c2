-- +goose NO TRANSACTION
-- +goose Up
-- The answer to a mutation, for its retries. The caller chooses the key. It is compared byte by
-- byte, because text columns ignore trailing spaces.
CREATE TABLE IF NOT EXISTS idempotency (
    workspace_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    idem_key       VARBINARY(512) NOT NULL,
    request_hash   VARBINARY(64) NOT NULL,
    procedure_name VARCHAR(255) NOT NULL,
    response       MEDIUMBLOB NOT NULL,
    created_at     BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, idem_key),
    KEY idempotency_age (created_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
