-- +goose NO TRANSACTION
-- +goose Up
-- The encoded RoutingPolicy that is sent to the region with this generation. NULL, as in older
-- rows, or empty: every field has its default.
ALTER TABLE app_routes
    ADD COLUMN IF NOT EXISTS policy BLOB NULL;
