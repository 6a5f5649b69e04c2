-- +goose NO TRANSACTION
-- +goose Up
-- The keys of the keyset that each of the control plane's processes read at its start. seals is 1 for
-- the one that it seals with. last_seen is on this database's clock. A row outlives its process, because
-- agents have credentials that the process sealed.
CREATE TABLE IF NOT EXISTS peer_keys (
    peer_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    key_id    BIGINT NOT NULL,
    seals     TINYINT NOT NULL,
    last_seen BIGINT NOT NULL,
    PRIMARY KEY (peer_id, key_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin;
