-- +goose NO TRANSACTION
-- +goose Up
-- Values with which a browser is signed in: session cookies, and links that begin a session once. A
-- renewal leaves two valid cookies for a moment. hash is the SHA-256 of the value.
CREATE TABLE IF NOT EXISTS browser_sessions (
    hash         VARBINARY(32) NOT NULL,
    session_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    workspace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    key_id       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    key_hash     VARBINARY(32) NOT NULL,
    is_link      BOOLEAN NOT NULL,
    signed_in_at BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    PRIMARY KEY (hash),
    KEY browser_sessions_of_key (key_id),
    KEY browser_sessions_by_id (session_id),
    KEY browser_sessions_by_end (expires_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
