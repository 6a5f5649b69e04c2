-- +goose NO TRANSACTION
-- +goose Up
-- The RoutingPolicy.CrossRegion of the route's policy, to find apps whose requests may go to other
-- regions. 0 in older rows, which had no such policy.
ALTER TABLE app_routes
    ADD COLUMN IF NOT EXISTS cross_region INT NOT NULL DEFAULT 0,
    ADD KEY IF NOT EXISTS routes_across (cross_region);
