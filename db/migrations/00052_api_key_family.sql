-- +goose NO TRANSACTION
-- +goose Up
-- The key that created this key, and the key that began its family. Empty, as in rows of earlier
-- releases: unknown, and the key is a family of its own.
ALTER TABLE api_keys
    ADD COLUMN IF NOT EXISTS made_by   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS family_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '';
