-- +goose NO TRANSACTION
-- +goose Up
-- People and services that sign in with a token of an issuer. identity is the SHA-256 of issuer and subject. claims is
-- JSON: the values of each claim of the last token. hash is random, and sessions of the member name it in key_hash.
-- Members of the platform have an empty workspace.
CREATE TABLE IF NOT EXISTS members (
    id           VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    identity     VARBINARY(32) NOT NULL,
    issuer       VARCHAR(512) NOT NULL,
    subject      VARCHAR(255) NOT NULL,
    name         VARCHAR(512) NOT NULL,
    email        VARCHAR(320) NOT NULL,
    claims       MEDIUMBLOB NOT NULL,
    hash         VARBINARY(32) NOT NULL,
    created_at   BIGINT NOT NULL,
    signed_in_at BIGINT NOT NULL,
    removed_at   BIGINT NOT NULL,
    removed_by   VARCHAR(255) NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY members_hash (hash),
    UNIQUE KEY members_identity (workspace_id, identity),
    KEY members_by_sign_in (signed_in_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
