-- +goose NO TRANSACTION
-- +goose Up
-- For verified domains: time of the last check of the TXT record, since when the record is missing,
-- and when the domain lapsed because of that. 0, as in older rows: never checked, not missing, not
-- lapsed.
ALTER TABLE domains
    ADD COLUMN IF NOT EXISTS checked_at    BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS missing_since BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS lapsed_at     BIGINT NOT NULL DEFAULT 0;
