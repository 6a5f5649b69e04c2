-- +goose NO TRANSACTION
-- +goose Up
-- What most instances are: a statement that stores a thousand of them leaves out the
-- columns that are so in all of them, which the server then need not read a thousand
-- times.
ALTER TABLE instances
    MODIFY role VARCHAR(63) NOT NULL DEFAULT 'main',
    MODIFY slot_no INT NOT NULL DEFAULT 0,
    MODIFY reason VARCHAR(128) NOT NULL DEFAULT '',
    MODIFY message TEXT NOT NULL DEFAULT (''),
    MODIFY restarts INT NOT NULL DEFAULT 0,
    MODIFY gpus BLOB NOT NULL DEFAULT ('[]'),
    MODIFY terminated_at BIGINT NOT NULL DEFAULT 0;
