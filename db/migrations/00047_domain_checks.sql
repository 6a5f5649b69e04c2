-- +goose NO TRANSACTION
-- +goose Up
-- When the record of a domain that was verified was looked for last, since when it is not
-- there, and when that had gone on for too long; 0, as in every row of before: never, and it
-- is there.
ALTER TABLE domains
    ADD COLUMN IF NOT EXISTS checked_at    BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS missing_since BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS lapsed_at     BIGINT NOT NULL DEFAULT 0;
