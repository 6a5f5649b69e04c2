-- +goose NO TRANSACTION
-- +goose Up
-- Values of sign-ins that work only once and were used. hash is the SHA-256 of the value.
CREATE TABLE IF NOT EXISTS used_sign_ins (
    hash       VARBINARY(32) NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (hash),
    KEY used_sign_ins_by_end (expires_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
