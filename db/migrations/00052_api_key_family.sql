-- +goose NO TRANSACTION
-- +goose Up
-- The key that made the key, and the first key of the line of keys that made each other; empty, as
-- in every row of before and of a release before this one: not known, and a family of its own.
ALTER TABLE api_keys
    ADD COLUMN IF NOT EXISTS made_by   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS family_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '';
