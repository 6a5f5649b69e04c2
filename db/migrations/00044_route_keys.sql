-- +goose NO TRANSACTION
-- +goose Up
-- The app's keys as the region is told with the generation, encoded; NULL, as in every row
-- of before, and empty: none.
ALTER TABLE app_routes
    ADD COLUMN IF NOT EXISTS app_keys BLOB NULL;
