-- +goose NO TRANSACTION
-- +goose Up
-- Tokens with which an agent can join a region. Each is for one agent.
CREATE TABLE IF NOT EXISTS join_tokens (
    id         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    region     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    hash       VARBINARY(32) NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    used_at    BIGINT NOT NULL,
    used_by    VARCHAR(128) NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY join_tokens_hash (hash),
    KEY join_tokens_by_region (region)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
