-- +goose NO TRANSACTION
-- +goose Up
-- How requests are routed, as the region is told with the generation: a RoutingPolicy,
-- encoded. NULL, as in every row of before, and empty: defaults in everything.
ALTER TABLE app_routes
    ADD COLUMN IF NOT EXISTS policy BLOB NULL;
