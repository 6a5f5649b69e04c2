-- +goose NO TRANSACTION
-- +goose Up
-- The app's keys, encoded, that are sent to the region with this generation. NULL, as in older
-- rows, or empty: none.
ALTER TABLE app_routes
    ADD COLUMN IF NOT EXISTS app_keys BLOB NULL;
