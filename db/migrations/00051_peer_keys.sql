-- +goose NO TRANSACTION
-- +goose Up
-- The keys of the keyset that each process of the control plane read at its start. seals is 1 for
-- the key with which the process seals. last_seen is a time of the database's clock. A row outlives its
-- process, because agents have credentials that the process sealed.
CREATE TABLE IF NOT EXISTS peer_keys (
    peer_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    key_id    BIGINT NOT NULL,
    seals     TINYINT NOT NULL,
    last_seen BIGINT NOT NULL,
    PRIMARY KEY (peer_id, key_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
