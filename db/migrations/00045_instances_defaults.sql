-- +goose NO TRANSACTION
-- +goose Up
-- The values that most instances have. A statement that stores a thousand instances leaves out
-- columns in which all have the default, so that the server need not parse these a thousand times.
ALTER TABLE instances
    MODIFY role VARCHAR(63) NOT NULL DEFAULT 'main',
    MODIFY slot_no INT NOT NULL DEFAULT 0,
    MODIFY reason VARCHAR(128) NOT NULL DEFAULT '',
    MODIFY message TEXT NOT NULL DEFAULT (''),
    MODIFY restarts INT NOT NULL DEFAULT 0,
    MODIFY gpus BLOB NOT NULL DEFAULT ('[]'),
    MODIFY terminated_at BIGINT NOT NULL DEFAULT 0;
