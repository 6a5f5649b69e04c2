-- +goose NO TRANSACTION
-- +goose Up
-- The values of secrets, encrypted. The ciphertext is bound to the secret's identity when it is
-- encrypted.
CREATE TABLE IF NOT EXISTS secret_versions (
    environment_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name           VARCHAR(63) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version        INT NOT NULL,
    ciphertext     MEDIUMBLOB NOT NULL,
    created_at     BIGINT NOT NULL,
    PRIMARY KEY (environment_id, name, version)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
